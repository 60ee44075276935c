"""LoRA adapters in both engines, compared with llama.cpp's own contexts with the same adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters import write_adapter
from tests.engine.conftest import DRAFT, MOE, OPTIONS
from tests.engine.drive import finish, read, read_plain, step, tokens_of
from tests.engine.graph.heads import WITH_HEADS, with_heads
from tests.engine.graph.models import MODELS, write
from uma_core.engine.api import Batch, DecodeStatus, Engine, PrefillStatus
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.decode import view_logits
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.engine.llama.model import LlamaModel
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import AdapterSet

SMALL = replace(OPTIONS, n_ctx=1024)
# root mean square of the difference, in standard deviations of the logits: rounding between other kernels
TOLERANCE = 0.03
FAR = 0.3  # the same for an adapter's effect: it is at least this
ONE: AdapterSet = (("one", 1.0),)
TWO: AdapterSet = (("two", 1.0),)
BOTH: AdapterSet = (("one", 0.5), ("two", -1.5))
SETS: tuple[AdapterSet, ...] = ((), ONE, TWO, BOTH)
KINDS = ("llama", "llama-chunked", "graph", "graph-chunked", "stock")

Open = Callable[[str], Engine]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, dict[str, str]]]:
    """Return a small random model by name, and two adapters for it."""
    folder = tmp_path_factory.mktemp("lora")
    known: dict[str, tuple[str, dict[str, str]]] = {}

    def make(name: str) -> tuple[str, dict[str, str]]:
        if name not in known:
            path = {"draft": DRAFT, "moe": MOE}.get(name) or write(MODELS[name], folder / f"{name}.gguf")
            says = {"adapter.lora.task_name": "sums", "adapter.lora.prompt_prefix": "Add:"}
            one = write_adapter(path, folder / f"{name}-one.gguf", 1, meta=says)
            two = write_adapter(
                path, folder / f"{name}-two.gguf", 2, 8, 0.0, kind=np.float16, wants=lambda each: "ffn" not in each
            )
            known[name] = path, {"one": one, "two": two}
        return known[name]

    return make


@pytest.fixture(params=KINDS)
def open_engine(request: pytest.FixtureRequest, files: Any) -> Iterator[Open]:
    def new(name: str) -> Engine:
        path, lora = files(name)
        options = replace(SMALL, lora=lora, prefill_lanes=0 if "chunked" in request.param else 2)
        if request.param.startswith("llama"):
            return LlamaEngine(path, options)
        return GraphEngine(path, options, is_stock=request.param == "stock")

    with ExitStack() as stack:
        yield lambda name: stack.enter_context(closing(new(name)))


class Reference:
    """llama.cpp alone: a context for each set of adapters, and everything is read token by token."""

    def __init__(self, path: str, lora: dict[str, str]) -> None:
        self.model = LlamaModel(path, SMALL)
        self.adapters = {
            name: lib.llama_adapter_lora_init(self.model.handle, file.encode()) for name, file in lora.items()
        }

    def logits(self, tokens: list[int], adapters: AdapterSet) -> np.ndarray:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch = 512, 512
        context = lib.llama_init_from_model(self.model.handle, params)
        handles = ffi.new("struct llama_adapter_lora *[]", [self.adapters[name] for name, _ in adapters])
        lib.llama_set_adapters_lora(
            context, handles, len(adapters), ffi.new("float[]", [scale for _, scale in adapters])
        )
        data = ffi.new("llama_token[]", [int(token) for token in tokens])
        assert lib.llama_decode(context, lib.llama_batch_get_one(data, len(tokens))) == 0
        out = view_logits(context, len(tokens) - 1, self.model.n_vocab).copy()
        lib.llama_free(context)
        return out

    def close(self) -> None:
        self.model.close()


@pytest.fixture
def reference(files: Any) -> Iterator[Callable[[str], Reference]]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(closing(Reference(*files(name))))


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.sqrt(np.mean((ours - theirs) ** 2)) / theirs.std())


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen2", "gemma2", "draft"])
def test_logits_are_llama_cpps(name: str, open_engine: Open, reference: Callable[[str], Reference]) -> None:
    engine, plain = open_engine(name), reference(name)
    prompt = tokens_of(engine, 70)
    for seq_id, adapters in enumerate(SETS):
        engine.set_adapters(seq_id, adapters)
        read(engine, seq_id, prompt)
        step(engine, [(seq_id, 40)])
        wanted = plain.logits([*prompt, 40], adapters)
        assert distance(engine.logits(0), wanted) < TOLERANCE
        assert not adapters or distance(engine.logits(0), plain.logits([*prompt, 40], ())) > FAR


def test_rows_of_different_sets_in_one_call(open_engine: Open, reference: Callable[[str], Reference]) -> None:
    """The graph engine computes them together. llama.cpp's engine refuses them, and computes one set after the
    other.
    """
    engine, plain = open_engine("llama"), reference("llama")
    prompts = [tokens_of(engine, 30 + seq_id, seq_id) for seq_id in range(4)]
    for seq_id, adapters in enumerate(SETS):
        engine.set_adapters(seq_id, adapters)
        read(engine, seq_id, prompts[seq_id])
    batch = Batch(16)
    for seq_id in range(4):
        batch.add(40 + seq_id, engine.kv_len(seq_id), seq_id, True)
    outcome = engine.decode(batch, [None] * 4)
    if engine.info.capabilities.can_mix_adapters:
        assert outcome.status is DecodeStatus.OK
        logits = [engine.logits(row).copy() for row in range(4)]
    else:
        assert outcome.status is DecodeStatus.BAD_BATCH
        logits = []
        for seq_id in range(4):
            step(engine, [(seq_id, 40 + seq_id)])
            logits.append(engine.logits(0).copy())
    for seq_id, adapters in enumerate(SETS):
        assert distance(logits[seq_id], plain.logits([*prompts[seq_id], 40 + seq_id], adapters)) < TOLERANCE


@pytest.mark.parametrize("open_engine", ["graph", "graph-chunked", "stock"], indirect=True)
def test_a_prompt_rides_with_streams_of_other_sets(open_engine: Open, reference: Callable[[str], Reference]) -> None:
    engine, plain = open_engine("llama"), reference("llama")
    prompt = tokens_of(engine, 20)
    for seq_id, adapters in ((0, ONE), (1, ())):
        engine.set_adapters(seq_id, adapters)
        read_plain(engine, seq_id, prompt)
    engine.set_adapters(2, BOTH)
    batch = Batch(16)
    batch.add(40, 20, 0, True)
    batch.add(41, 20, 1, True)
    batch.extend(prompt[:7], 0, 2, True)
    assert engine.decode(batch, [None] * 3).status is DecodeStatus.OK
    rows = ([*prompt, 40], ONE), ([*prompt, 41], ()), (list(prompt[:7]), BOTH)
    for row, (tokens, adapters) in enumerate(rows):
        assert distance(engine.logits(row), plain.logits(tokens, adapters)) < TOLERANCE


@pytest.mark.parametrize("open_engine", ["llama", "graph", "stock"], indirect=True)
def test_a_paused_prompt_keeps_its_adapters_while_others_compute(
    open_engine: Open, reference: Callable[[str], Reference]
) -> None:
    engine, plain = open_engine("llama"), reference("llama")
    prompt, chat = tokens_of(engine, 200, 1), tokens_of(engine, 30, 2)
    engine.set_adapters(0, ONE)
    engine.set_adapters(1, TWO)
    engine.set_adapters(2, BOTH)
    read(engine, 0, chat)
    assert engine.prefill_open(1, prompt, True) and engine.prefill_open(2, prompt[:150], True)
    said, is_done = list(chat), [False, False]
    while not all(is_done):
        for seq_id in (1, 2):
            if not is_done[seq_id - 1]:
                is_done[seq_id - 1] = engine.prefill_run(seq_id, 0, 1, 1).status is PrefillStatus.DONE
        if len(said) < 40:
            said.append(40 + len(said))
            step(engine, [(0, said[-1])])
    for seq_id, n, adapters in ((1, 200, TWO), (2, 150, BOTH)):
        assert distance(engine.prefill_logits(seq_id), plain.logits(list(prompt[:n]), adapters)) < TOLERANCE
        finish(engine.publish_kv(seq_id))
        step(engine, [(seq_id, 40)])
        assert distance(engine.logits(0), plain.logits([*prompt[:n], 40], adapters)) < TOLERANCE
    step(engine, [(0, 99)])
    assert distance(engine.logits(0), plain.logits([*said, 99], ONE)) < TOLERANCE


def test_a_sequence_takes_another_set_when_it_is_empty(
    open_engine: Open, reference: Callable[[str], Reference]
) -> None:
    engine, plain = open_engine("llama"), reference("llama")
    prompt = tokens_of(engine, 50)
    for adapters in (ONE, (), BOTH, ONE, ()):
        engine.kv_truncate(0, 0)
        engine.set_adapters(0, adapters)
        read(engine, 0, prompt)
        step(engine, [(0, 40)])
        assert distance(engine.logits(0), plain.logits([*prompt, 40], adapters)) < TOLERANCE


def test_a_model_with_adapters_computes_requests_without_any_as_before(open_engine: Open, files: Any) -> None:
    engine = open_engine("draft")
    kind = type(engine)
    options = replace(SMALL, prefill_lanes=2 if engine.info.capabilities.n_prefill_slots else 0)
    more = {"is_stock": True} if "ggml's operations" in "".join(engine.info.notes) else {}
    plain = kind(files("draft")[0], options, **more)  # type: ignore[arg-type]
    prompt = tokens_of(engine, 60)
    for each in (engine, plain):
        read(each, 0, prompt)
        step(each, [(0, 40)])
    assert (engine.logits(0) == plain.logits(0)).all()
    plain.close()


def test_the_adapters_that_are_loaded_are_told(open_engine: Open, files: Any) -> None:
    _, lora = files("llama")
    adapters = open_engine("llama").info.adapters
    assert [(each.id, each.path, each.scale) for each in adapters] == [(name, path, 0.0) for name, path in lora.items()]
    assert all(each.n_bytes > 1000 for each in adapters) and len({each.fingerprint for each in adapters}) == 2
    assert [(each.task_name, each.prompt_prefix) for each in adapters] == [("sums", "Add:"), ("", "")]


# ---- files that are not served


def no_pair(name: str, data: np.ndarray) -> np.ndarray | None:
    return None if name == "blk.0.attn_q.weight.lora_b" else data


def wrong(half: str, axis: int, matrix: str = "blk.1.ffn_down") -> Callable[[str, np.ndarray], np.ndarray]:
    return lambda name, data: np.concatenate([data, data], axis) if name == f"{matrix}.weight.{half}" else data


BAD: dict[str, dict[str, Any]] = {
    "a model": {"meta": {"general.type": "model"}},
    "no lora": {"meta": {"adapter.type": "cvec"}},
    "another architecture": {"arch": "qwen2"},
    "half a pair": {"change": no_pair},
    "input too long": {"change": wrong("lora_a", 1)},
    "output too long": {"change": wrong("lora_b", 0)},
    "ranks that differ": {"change": wrong("lora_a", 0)},
    "no matrices": {"wants": lambda name: False},
    "alpha is not a number": {"alpha": float("nan")},
    "integers": {"kind": np.int32},
}


@pytest.mark.parametrize("kind", ["llama", "graph"])
@pytest.mark.parametrize("what", BAD)
def test_an_adapter_that_is_none_of_the_model_is_refused(what: str, kind: str, files: Any, tmp_path: Path) -> None:
    path, _ = files("llama")
    more = BAD[what]
    strength = 500.0 if what == "integers" else 0.3
    file = write_adapter(path, tmp_path / "bad.gguf", **{"strength": strength, **more})
    refused(kind, path, file)


@pytest.mark.parametrize("kind", ["llama", "graph"])
@pytest.mark.parametrize("matrix", ["ffn_down_exps", "ffn_gate_exps"])
def test_an_adapter_for_another_number_of_experts_is_refused(
    matrix: str, kind: str, files: Any, tmp_path: Path
) -> None:
    path, _ = files("mixtral")
    for half in ("lora_a", "lora_b"):
        file = write_adapter(path, tmp_path / f"{half}.gguf", change=wrong(half, 0, f"blk.0.{matrix}"))
        refused(kind, path, file)


@pytest.mark.parametrize("kind", ["llama", "graph"])
def test_files_that_are_damaged_are_refused(kind: str, files: Any, tmp_path: Path) -> None:
    path, lora = files("llama")
    whole = Path(lora["one"]).read_bytes()
    broken = tmp_path / "broken.gguf"
    for data in (b"", b"GGUF", whole[:200], whole[: len(whole) // 2], whole[:-1000], b"\xff" * 4096):
        broken.write_bytes(data)
        refused(kind, path, str(broken))
    refused(kind, path, str(tmp_path / "absent.gguf"))
    refused(kind, path, str(tmp_path))
    refused(kind, path, path)  # the path of the model itself


@pytest.mark.parametrize("kind", ["llama", "graph"])
def test_the_embedding_of_a_model_whose_output_it_is_cannot_be_adapted(kind: str, files: Any, tmp_path: Path) -> None:
    """llama.cpp would end the process."""
    path, _ = files("qwen2")
    untied, _ = files("llama")
    file = write_adapter(untied, tmp_path / "tied.gguf", arch="qwen2", wants=lambda name: name == "token_embd.weight")
    refused(kind, path, file)


def test_random_damage_ends_in_an_error_or_an_engine(files: Any, tmp_path: Path) -> None:
    path, lora = files("llama")
    whole = Path(lora["one"]).read_bytes()
    draw = np.random.default_rng(5)
    broken = tmp_path / "broken.gguf"
    for _ in range(60):
        data = bytearray(whole)
        for at in draw.integers(0, 3000, draw.integers(1, 8)):
            data[at] = draw.integers(256)
        broken.write_bytes(data)
        for kind in ("llama", "graph"):
            try:
                engine = opened(kind, path, str(broken))
            except UmaError as error:
                assert error.error in (
                    ErrorCode.ADAPTER_LOAD_FAILED,
                    ErrorCode.INSUFFICIENT_MEMORY,
                    ErrorCode.CONFIG_INVALID,
                )
                continue
            engine.set_adapters(0, (("bad", 1.0),))
            read(engine, 0, tokens_of(engine, 20))
            engine.close()


def opened(kind: str, path: str, file: str) -> Engine:
    options = replace(SMALL, lora={"bad": file})
    return LlamaEngine(path, options) if kind == "llama" else GraphEngine(path, options)


def refused(kind: str, path: str, file: str) -> None:
    with pytest.raises(UmaError) as caught:
        opened(kind, path, file)
    assert caught.value.error is ErrorCode.ADAPTER_LOAD_FAILED, caught.value
    assert caught.value.detail["adapter"] == "bad"


def test_an_adapter_that_changes_prediction_heads_is_served_by_llama_cpp(tmp_path: Path) -> None:
    path = with_heads(WITH_HEADS["glm4moe"], tmp_path / "heads.gguf", says_next=True)
    options = replace(SMALL, mtp=True, lora={"one": write_adapter(path, tmp_path / "one.gguf")})
    with pytest.raises(UmaError, match="does not support a LoRA adapter's use of blk") as caught:
        GraphEngine(path, options)
    assert caught.value.error is ErrorCode.CONFIG_INVALID, "with `--engine auto` llama.cpp's engine is opened instead"
    LlamaEngine(path, options).close()
