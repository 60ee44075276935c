"""Every worked example of docs/PROTOCOL.md runs, and every request field appears in one of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapters import write_adapter
from tests.daemon.examples import EXAMPLES
from tests.daemon.fim import write_fim
from tests.daemon.support import DRAFT, SMALL, TINY, DaemonProcess, Event, Wire, running
from tests.engine.encoders import ENCODERS, write
from uma_core.protocol.fields import Field
from uma_core.protocol.ops import DEFAULT_OP, OPS

ELSEWHERE = {"digest"}  # test_digest.py: its second request needs the first one's reply
VARIES = "…"


def arguments(model: str, folder: Path) -> list[str]:
    if model == "an encoder":
        return ["--model", write(ENCODERS["bert"], folder / "bert.gguf"), "--threads", "1", "--n-ubatch", "64"]
    if model == "a reranker":
        return ["--model", write(ENCODERS["bert-rank"], folder / "rank.gguf"), "--threads", "1", "--n-ubatch", "64"]
    if model == "a model with adapters":
        paths = {
            name: write_adapter(str(DRAFT), folder / f"{name}.gguf", i) for i, name in enumerate(("tone", "topic"))
        }
        return [
            "--model",
            str(DRAFT),
            *SMALL,
            *(part for name in paths for part in ("--lora", f"{name}={paths[name]}")),
        ]
    if model == "a model for filling in":
        return ["--model", str(write_fim(folder / "fim.gguf")), *SMALL]
    assert model == "uma-tiny", f"no test knows {model}"
    return ["--model", str(TINY), *SMALL]


@pytest.fixture(scope="module")
def daemon_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], DaemonProcess]]:
    folder, started = tmp_path_factory.mktemp("p"), dict[str, DaemonProcess]()
    with contextlib.ExitStack() as stack:

        def start(model: str) -> DaemonProcess:
            if model not in started:
                path = str(folder / f"{len(started)}.sock")
                started[model] = stack.enter_context(running(folder, *arguments(model, folder), path=path))
            return started[model]

        yield start


def is_like(shown: Any, came: Any) -> bool:
    """Whether a message matches the example. `…` stands for anything and, at the end of a text, for any rest. Numbers
    are compared to two digits.
    """
    if isinstance(shown, str) and shown.endswith(VARIES):
        return shown == VARIES or (isinstance(came, str) and came.startswith(shown[:-1]))
    if isinstance(shown, dict):
        return isinstance(came, dict) and all(key in came and is_like(value, came[key]) for key, value in shown.items())
    if isinstance(shown, list):
        return isinstance(came, list) and len(shown) == len(came) and all(map(is_like, shown, came))
    if isinstance(shown, float) and isinstance(came, float):
        return math.isclose(shown, came, abs_tol=0.06)
    return bool(shown == came)


def await_event(wire: Wire, shown: Event) -> None:
    """Read on until the event that the line shows; the example leaves out the events before it."""
    while True:
        came = wire.event()
        is_meant = came["event"] == shown.get("event", "reply") and came["id"] == shown["id"]
        if is_meant and is_like(shown, came):
            return
        is_passed = came["event"] in ("token", "prompt", "end", "queued")
        is_passed |= came["id"] != shown["id"] and came["event"] != "error"
        assert is_passed, f"instead of {shown}: {came}"


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ELSEWHERE])
def test_it_runs_as_shown(daemon_of: Callable[[str], DaemonProcess], name: str) -> None:
    example = EXAMPLES[name]
    with daemon_of(example.model).connect() as wire:
        for is_sent, line in example.lines:
            if is_sent:
                wire.send(**line)
            else:
                await_event(wire, line)
        if len(example.lines) == 1:  # the page describes this request's answer in words
            id = example.requests[0].get("id")
            while (last := wire.event())["event"] not in ("eos", "reply", "error"):
                pass
            assert last["event"] != "error" and last.get("reason") != "error" and id in (None, last["id"]), last


def used(fields: tuple[Field, ...], value: Any) -> set[int]:
    """Return the declarations of the fields that a request holds, including those inside objects."""
    found = set()
    for field in fields:
        if isinstance(value, dict) and value.get(field.name) is not None:
            inner = value[field.name]
            found.add(id(field))
            for each in inner if isinstance(inner, list) else [inner]:
                found |= used(field.fields, each)
    return found


def paths(fields: tuple[Field, ...], prefix: str) -> Iterator[tuple[str, Field]]:
    for field in fields:
        yield prefix + field.name, field
        yield from paths(field.fields, f"{prefix}{field.name}.")


def test_every_field_of_a_request_is_in_an_example() -> None:
    """A field that several operations share is declared once, and needs one example."""
    shown = set[int]()
    for example in EXAMPLES.values():
        for request in example.requests:
            shown |= used(OPS[request.get("type", DEFAULT_OP)].fields, request)
    missing = [path for op in OPS.values() for path, field in paths(op.fields, f"{op.name}.") if id(field) not in shown]
    assert not missing
