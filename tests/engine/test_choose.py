"""`--engine auto`: the graph engine only where it serves the model and was measured faster; always with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.conftest import DRAFT, OPTIONS
from tests.engine.drive import generate
from uma_core.engine import choose as module
from uma_core.engine.api import Engine
from uma_core.engine.choose import N_CALLS, Choice, choose, measure, verdict
from uma_core.engine.fake import FakeEngine, FakeModel
from uma_core.engine.open import estimate_engine, open_engine
from uma_core.errors import ErrorCode, UmaError

AUTO = replace(OPTIONS, model=DRAFT, engine="auto")
SHAPES = ("1 streams at 256", "4 streams at 256")


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path))
    yield


def times(*ms: float) -> dict[str, tuple[float, ...]]:
    return {shape: (value * 1e6,) * N_CALLS for shape, value in zip(SHAPES, ms, strict=True)}


@pytest.mark.parametrize(
    ("graph", "expected"),
    [((10, 10), "llama"), ((9, 9), "graph"), ((10.2, 5), "graph"), ((11, 5), "llama"), ((20, 20), "llama")],
)
def test_it_has_to_be_faster_and_nowhere_slower(graph: tuple[float, float], expected: str) -> None:
    choice, is_calm = verdict(times(10, 10), times(*graph))
    assert (choice.engine, is_calm) == (expected, True)
    assert "times llama.cpp's speed" in choice.reason


def test_a_disturbed_comparison_says_nothing() -> None:
    graph = times(1, 1)
    graph[SHAPES[0]] = (1e6, 2e6, *graph[SHAPES[0]][2:])
    assert verdict(times(10, 10), graph) == (Choice("llama", "comparing the engines was disturbed"), False)


def test_measuring_leaves_every_sequence_empty() -> None:
    engine = FakeEngine(FakeModel(n_ctx=16384))
    found = measure(engine)
    assert {"1 streams at 256", "4 streams at 256", "1 streams at 2048", "4 streams at 2048"} < found.keys()
    assert all(len(calls) == N_CALLS for calls in found.values())
    assert [engine.kv_len(s) for s in range(4)] == [0] * 4


def test_without_a_comparison_llama_cpp_computes_and_says_why() -> None:
    for options in (AUTO, replace(AUTO, calibrate="off")):
        engine = open_engine(options)
        assert engine.info.engine == "llama"
        assert any("engine auto took llama: " in note and "compared" in note for note in engine.info.notes)
        engine.close()


def test_what_the_graph_engine_lacks_is_the_reason() -> None:
    choice = choose(DRAFT, replace(AUTO, kv_type="q4_0", calibrate="force"), lambda name: pytest.fail("nothing to compare"))
    assert choice == Choice("llama", "the graph engine lacks KV type q4_0")


def compared(monkeypatch: pytest.MonkeyPatch, graph_ms: float) -> Callable[[Engine], dict[str, tuple[float, ...]]]:
    measured: list[str] = []

    def fake(engine: Engine) -> dict[str, tuple[float, ...]]:
        measured.append(engine.info.engine)
        return times(10, 10) if engine.info.engine == "llama" else times(graph_ms, graph_ms)

    monkeypatch.setattr(module, "measure", fake)
    return fake


def test_a_comparison_is_kept_for_later_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    compared(monkeypatch, 5)
    for calibrate in ("force", "auto"):
        engine = open_engine(replace(AUTO, calibrate=calibrate))
        assert engine.info.engine == "graph"
        assert any("engine auto took graph: the graph engine has 2.00 times" in note for note in engine.info.notes)
        assert len(generate(engine, 0, 50, 3)) == 4
        engine.close()
    assert estimate_engine(AUTO) == estimate_engine(replace(AUTO, engine="graph"))
    assert choose(DRAFT, replace(AUTO, threads=1)).engine == "llama", "other options, another comparison"


def test_a_stored_choice_that_no_longer_holds_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choose", lambda *a: Choice("graph", "measured"))
    engine = open_engine(replace(AUTO, kv_type="q4_0"))
    assert engine.info.engine == "llama"
    assert any("KV type q4_0" in note for note in engine.info.notes)
    engine.close()


def test_what_only_loading_shows_is_a_reason_too(tmp_path: Path) -> None:
    def open_as(name: str) -> Engine:
        if name == "graph":
            raise UmaError(ErrorCode.CONFIG_INVALID, "it lacks a use of blk.0.attn_sinks.weight")
        return FakeEngine(FakeModel(n_ctx=16384))

    found = choose(DRAFT, replace(AUTO, calibrate="force"), open_as)
    assert found.engine == "llama" and "attn_sinks" in found.reason
    assert not list(tmp_path.rglob("engine-*.json")), "nothing was measured, nothing is stored"
