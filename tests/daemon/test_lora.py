"""LoRA adapters through the socket: requests choose them, and the daemon checks them at start and at a reload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters import write_adapter
from tests.daemon.examples import EXAMPLES
from tests.daemon.support import DRAFT, TINY, DaemonProcess, Wire, text_of

PROMPT = "The shell reads commands and"
Serve = Callable[..., DaemonProcess]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("lora")
    yield {
        "tone": write_adapter(str(DRAFT), folder / "tone.gguf", 1, meta={"adapter.lora.task_name": "tone"}),
        "topic": write_adapter(str(DRAFT), folder / "topic.gguf", 2, 8, kind=np.float16),
        "foreign": write_adapter(str(TINY), folder / "foreign.gguf", 3),
    }


def flags(adapters: dict[str, str], *names: str) -> list[str]:
    return [part for name in names for part in ("--lora", f"{name}={adapters[name]}")]


def say(wire: Wire, **fields: Any) -> str:
    wire.send(id="r", prompt=PROMPT, max_tokens=20, **fields)
    return text_of(wire.until_final("r"))


@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_requests_choose_their_adapters(serve_model: Serve, adapters: dict[str, str], engine: str) -> None:
    daemon = serve_model(
        "--engine", engine, *flags(adapters, "tone", "topic"), "--lora-scale", "topic=0.5", model=DRAFT
    )
    with daemon.connect() as wire:
        wire.send(id="e", **EXAMPLES["lora"].requests[0])
        documented = wire.until_final("e")[-1]
        assert documented["reason"] == "length" and documented["usage"]["completion_tokens"] == 24
        plain, tone = say(wire, lora=[]), say(wire, lora=[{"id": "tone"}])
        both = say(wire, lora=[{"id": "topic"}, {"id": "tone", "scale": 0.5}])
        unsaid = say(wire)
        assert len({plain, tone, both, unsaid}) == 4 and documented["text"].startswith(both)
        assert say(wire, lora=[{"id": "topic", "scale": 0.5}]) == unsaid
        assert say(wire, lora=[{"id": "tone", "scale": 0}]) == plain
        refused = [
            ([{"id": "tonne"}], "lora"),
            ([{"id": "tone"}, {"id": "tone"}], "lora[1].id"),
            ([{"id": "tone", "scale": "much"}], "lora[0].scale"),
            ([{"id": 0}], "lora[0].id"),
            ([{"name": "tone"}], "lora[0].name"),
            ("tone", "lora"),
        ]
        for lora, field in refused:
            wire.send(id="bad", prompt=PROMPT, lora=lora)
            error = wire.until_final("bad")[-1]
            assert (error["event"], error["name"], error["detail"]["field"]) == ("error", "bad_request", field)
    expected = {
        "plain": (plain, []),
        "tone": (tone, [{"id": "tone"}]),
        "both": (both, [{"id": "topic"}, {"id": "tone", "scale": 0.5}]),
    }
    with daemon.connect() as wire:
        for i in range(12):
            wire.send(
                id=f"{i}",
                prompt=PROMPT,
                max_tokens=20,
                lora=list(expected.values())[i % 3][1],
                priority="background" if i % 2 else None,
            )
        texts = dict.fromkeys(map(str, range(12)), "")
        n_ended = 0
        while n_ended < 12:
            event = wire.event()
            if event["event"] in ("token", "eos"):
                texts[event["id"]] += event.get("text") or ""
            n_ended += event["event"] == "eos"
    for i in range(12):
        alone = list(expected.values())[i % 3][0]
        assert texts[f"{i}"][:24] == alone[:24], "in a mixture as alone, up to rounding that may show later"
    status = daemon.ask("status")
    assert [(each["id"], each["scale"]) for each in status["engine"]["adapters"]] == [("tone", 0), ("topic", 0.5)]
    told = daemon.ask("props")["adapters"]
    said = [(each["id"], each["task_name"], each["prompt_prefix"]) for each in told]
    assert said == [("tone", "tone", ""), ("topic", "", "")]
    assert any("calls of their own" in note for note in status["engine"]["notes"]) == (engine == "llama")
    assert not daemon.ask("metrics")["metrics"]["plan_violations_total"]


@pytest.mark.parametrize("engine", ["auto", "llama", "graph"])
def test_an_adapter_of_another_model_ends_the_start_with_a_code(
    folder: Path, adapters: dict[str, str], engine: str
) -> None:
    daemon = DaemonProcess(folder, "--model", str(DRAFT), "--engine", engine, *flags(adapters, "foreign"))
    assert daemon.process.wait(60) == 1
    assert "E_ADAPTER_001 adapter_load_failed: adapter foreign" in daemon.log


def test_a_reload_takes_adapters_in_or_keeps_what_there_is(
    folder: Path, serve_model: Serve, adapters: dict[str, str]
) -> None:
    config = folder / "config.yaml"
    config.write_text(f"engine:\n  lora: {{tone: {adapters['tone']}}}\n")
    daemon = serve_model("--config", str(config), model=DRAFT)
    with daemon.connect() as wire:
        tone = say(wire, lora=[{"id": "tone"}])
        config.write_text(f"engine:\n  lora: {{tone: {adapters['foreign']}}}\n")
        refused = daemon.ask("reload")
        assert (
            refused["event"] == "error"
            and refused["name"] == "adapter_load_failed"
            and refused["detail"]["adapter"] == "tone"
        )
        assert say(wire, lora=[{"id": "tone"}]) == tone
        config.write_text(
            f"engine:\n  lora:\n    tone: {adapters['topic']}\n    topic: {adapters['tone']}\n  lora_scale: {{topic: "
            "1}\n"
        )
        assert daemon.ask("reload")["event"] == "reply"
        assert say(wire, lora=[{"id": "tone"}]) != tone, "the same id, and another file: nothing of the cache is used"
        assert say(wire, lora=[{"id": "topic"}]) == tone == say(wire)


def test_files_of_the_cache_are_another_adapters_no_more(
    folder: Path, serve_model: Serve, adapters: dict[str, str]
) -> None:
    long = PROMPT * 20
    cache = ["--cache-dir", str(folder / "kv")]

    def ask(daemon: DaemonProcess, lora: list[dict[str, Any]]) -> tuple[str, int]:
        with daemon.connect() as wire:
            wire.send(id="r", prompt=long, max_tokens=12, lora=lora)
            events = wire.until_final("r")
        return text_of(events), events[-1]["usage"]["cached_tokens"]

    first = serve_model(*cache, *flags(adapters, "tone"), model=DRAFT)
    tone, plain = ask(first, [{"id": "tone"}])[0], ask(first, [])[0]
    first.stop()
    swapped = {"tone": adapters["topic"], "topic": adapters["tone"]}
    second = serve_model(*cache, *flags(swapped, "tone", "topic"), model=DRAFT)
    other, n_other = ask(second, [{"id": "tone"}])
    assert other not in (tone, plain) and n_other == 0
    assert ask(second, [{"id": "tone", "scale": 2}])[1] == 0
    for lora, text in (([{"id": "topic"}], tone), ([], plain)):
        again, n_cached = ask(second, lora)
        assert again == text and n_cached > 50
