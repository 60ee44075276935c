"""Every value in an engine option's range either works or is refused with a code before the daemon serves anything. No
value ends in a signal or a hang.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import gguf
import numpy as np
import pytest

from perf.gguf_file import save
from tests.adapters import write_adapter
from tests.daemon.forked import ANSWERED, Nursery, as_arguments
from tests.daemon.support import DRAFT, MOE, Event, running
from uma_core.config.options import OPTIONS
from uma_core.config.schema import Option

# Seed 1 draws a thousand threads: on two cores they wait for each other for a minute and a half.
SEEDS = range(1200) if os.environ.get("UMA_FUZZ") == "full" else range(2, 20)
OF_A_LOAD = [opt for opt in OPTIONS if opt.section == "engine" and opt.reload != "restart" and opt.name != "model"]
REFUSALS = {
    "E_CONFIG_001",
    "E_MODEL_004",
    "E_ADAPTER_001",
}  # the option itself, more memory than there is, an adapter of another model
ENDS = {
    *ANSWERED,
    "E_LIMIT_001",
    "E_RUNTIME_004",
}  # the context is too short for the prompt; a step takes longer than --hang-timeout-ms
EDGES = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    100,
    127,
    128,
    129,
    255,
    256,
    257,
    511,
    513,
    1000,
    2048,
    4096,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A dense model, a mixture of experts, and a model whose weights are not quantized."""
    return [DRAFT, MOE, unquantized(DRAFT, tmp_path_factory.mktemp("models") / "f32.gguf")]


def unquantized(source: Path, target: Path) -> Path:
    """The same model in F32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, entry in reader.fields.items():
        if name == "general.file_type":
            writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        elif not name.startswith("GGUF.") and name != "general.architecture":
            is_list = entry.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, entry.contents(), entry.types[0], entry.types[-1] if is_list else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    save(writer)
    return target


@pytest.fixture(scope="module")
def adapters(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """A LoRA adapter for each model. It does not fit the other models."""
    folder = tmp_path_factory.mktemp("lora")
    return {
        model: write_adapter(str(model), folder / f"{model.stem}.gguf", rank=4 + i) for i, model in enumerate(models)
    }


def draw(rng: random.Random, options: list[Option], lora: list[str]) -> dict[str, object]:
    """Draw values for some of the options. Odd values and the ends of ranges are more frequent than others, and
    expensive values are rarer.

    `lora`: adapters, the model's own first.
    """
    flags = {opt.flag: value_of(rng, opt) for opt in rng.sample(options, rng.randrange(1, len(options) + 1))}
    if "--lora" in flags:
        path = lora[0] if rng.random() < 0.8 else rng.choice([*lora[1:], "absent.gguf"])
        flags["--lora"] = ",".join(f"{name}={path}" for name in ("tone", "topic")[: rng.randrange(1, 3)])
    if "--lora-scale" in flags:
        flags["--lora-scale"] = f"tone={rng.choice((0, 0.5, 1, -1))}"
    n_batch, n_ubatch = flags.get("--n-batch", 512), flags.get("--n-ubatch", 1)
    if rng.random() < 0.9 and int(str(n_ubatch)) > int(str(n_batch)):  # one in ten is left invalid, to be refused
        flags["--n-ubatch"] = n_batch
    if rng.random() < 0.9:
        if int(str(flags.get("--threads", 0))) > 8:
            flags["--threads"] = rng.randrange(4)
        if flags.get("--memory-budget-mb"):
            flags["--memory-budget-mb"] = 0
    return flags


def value_of(rng: random.Random, opt: Option) -> object:
    if opt.name == "engine":
        return rng.choice(("auto", "llama", "graph"))
    if opt.kind is dict:
        return ""  # see `draw`
    if opt.kind is bool:
        return rng.random() < 0.5
    if opt.choices:
        return rng.choice(opt.choices)
    low, high = int(opt.extra["min"]), int(opt.extra["max"])
    drawn = (
        rng.choice((low, low + 1, high - 1, high)),
        rng.randrange(1, 70),
        rng.choice(EDGES),
        rng.choice(EDGES),
        int(2 ** (20 * rng.random())),
    )
    return max(low, min(high, rng.choice(drawn)))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", SEEDS)
def test_any_combination_is_served_or_refused(
    daemons: Nursery, models: list[Path], adapters: dict[Path, str], seed: int
) -> None:
    rng = random.Random(seed)
    model = rng.choice(models)
    flags = draw(rng, OF_A_LOAD, sorted(adapters.values(), key=lambda path: path != adapters[model]))
    outcome = daemons.run(model, flags)
    asked = f"{model.name} {' '.join(as_arguments(flags))}: {outcome}"
    assert outcome.is_sound, asked
    assert not outcome.code or outcome.code in REFUSALS, asked
    assert set(outcome.reasons) <= ENDS, asked


@pytest.mark.parametrize("engine", ["llama", "graph"])
@pytest.mark.parametrize(
    "flag, value",
    [("--n-batch", 1), ("--n-batch", 3), ("--n-batch", 16), ("--n-batch", 33), ("--n-ubatch", 1), ("--n-ubatch", 5)],
)
def test_small_and_odd_batches_serve(daemons: Nursery, engine: str, flag: str, value: int) -> None:
    outcome = daemons.run(
        DRAFT, {"--engine": engine, flag: value, "--n-ctx": 1024, "--threads": 1, "--calibrate": "force"}
    )
    assert outcome.is_sound and set(outcome.reasons) <= ANSWERED, outcome


@pytest.mark.parametrize(
    "flags, option",
    [
        ({"--moe-top-k": 9, "--engine": "llama"}, "engine.moe_top_k"),
        ({"--moe-top-k": 9, "--engine": "graph"}, "engine.moe_top_k"),
        ({"--kv-type": "q8_0", "--flash-attn": "off"}, "engine.kv_type"),
        ({"--n-batch": 4, "--n-ubatch": 5}, "engine.n_ubatch"),
        ({"--n-ctx": 3}, "engine.n_ctx"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_option(
    daemons: Nursery, flags: dict[str, object], option: str
) -> None:
    outcome = daemons.run(MOE, flags)
    assert (outcome.status, outcome.code) == (1, "E_CONFIG_001") and option in outcome.log, outcome


@pytest.mark.fuzz
def test_a_stream_goes_on_through_reloads_with_any_values(folder: Path, adapters: dict[Path, str]) -> None:
    rng, config = random.Random(3), folder / "uma.yaml"
    names = {opt.flag: opt.name for opt in OF_A_LOAD}
    usual: dict[str, object] = {"--threads": 1, "--n-ctx": 8192, "--calibrate": "off"}

    def reload(flags: dict[str, object]) -> Event:
        lines = [f"  {names[flag]}: {str(value).lower()}" for flag, value in flags.items()]
        config.write_text("engine:\n" + "\n".join(lines) + "\n")
        return daemon.ask("reload")

    config.write_text("")
    with running(folder, "--config", str(config), "--model", str(DRAFT), *as_arguments(usual)[-2:]) as daemon:
        n_reloads, n_shown = max(5, len(SEEDS) // 20), 0
        for _ in range(n_reloads):
            drawn = draw(rng, [opt for opt in OF_A_LOAD if opt.name != "calibrate"], [adapters[DRAFT], adapters[MOE]])
            assert reload(usual)["event"] == "reply"
            stream = daemon.stream(max_tokens=1500).begun()
            reply = reload(drawn)
            assert reply["event"] == "reply" or reply["code"] in REFUSALS, (drawn, reply)
            n_shown += not stream.has_ended  # with 256 threads on two cores a reload takes longer than the stream
            final = stream.end()
            assert (final["reason"], final["usage"]["completion_tokens"]) == ("length", 1500), (drawn, reply, final)
        assert n_shown > n_reloads // 2, "most reloads took longer than the stream: nothing is shown"
