"""`--engine auto` takes the graph engine only if it serves the model and was measured faster, and always gives a
reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.engine.conftest import DRAFT, OPTIONS
from tests.engine.drive import generate
from tests.engine.graph.models import MODELS, Model, write
from tests.engine.headers import choose
from uma_core.engine.api import Engine
from uma_core.engine.select import choose as module
from uma_core.engine.select import compare
from uma_core.engine.select.choose import Choice, store, stored_in
from uma_core.engine.select.compare import N_AGREE, Shape, Times
from uma_core.engine.select.open import estimate_engine, open_engine
from uma_core.engine.select.trial import Trial

AUTO = replace(OPTIONS, model=DRAFT, engine="auto")
FASTER = Choice("graph", "it is faster")


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("UMA_BUILD_CACHE", str(tmp_path))
    yield


class Clocked:
    """Stands in for `measure`: reports the time of each engine's calls, and remembers which engines were measured
    together.
    """

    def __init__(self, **ms: float) -> None:
        self.ms = ms
        self.asked: list[list[str]] = []

    def __call__(self, engines: Sequence[Engine], shapes: Sequence[Shape], trial: Trial) -> list[Times]:
        names = [engine.info.engine for engine in engines]
        self.asked.append(names)
        return [{shape.name: [round(self.ms[name] * 1e6)] * N_AGREE for shape in shapes} for name in names]


def test_without_a_comparison_llama_cpp_computes_and_says_why() -> None:
    for options in (AUTO, replace(AUTO, calibrate="off")):
        engine = open_engine(options)
        assert engine.info.engine == "llama"
        assert any("engine auto took llama: " in note and "compared" in note for note in engine.info.notes)
        engine.close()


def test_what_is_due_is_compared_only_where_somebody_lets_it() -> None:
    assert choose(DRAFT, AUTO).is_due
    assert choose(DRAFT, replace(AUTO, calibrate="force")).is_due
    assert not choose(DRAFT, replace(AUTO, calibrate="off")).is_due


def test_what_the_graph_engine_lacks_is_the_reason() -> None:
    for calibrate in ("auto", "force"):
        choice = choose(DRAFT, replace(AUTO, flash_attn="off", calibrate=calibrate))
        assert choice == Choice("llama", "the graph engine does not support attention that is not fused")


def test_status_names_an_architecture_that_llama_cpp_alone_serves(tmp_path: Path) -> None:
    """A complete model that llama.cpp loads and generates with. No family here has its architecture."""
    norms = {"attn_norm.weight": (128,), "attn_norm.bias": (128,), "output_norm.bias": (128,)}
    biases = {"attn_output.bias": (128,), "ffn_up.bias": (160,), "ffn_down.bias": (128,)}
    model = Model(
        "phi2", n_head_kv=4, has_bias=True, is_tied=False, meta={"attention.layer_norm_epsilon": 1e-5},
        layer_tensors={name: dims for name, dims in (norms | biases).items() if "output_norm" not in name},
        model_tensors={"output_norm.bias": (128,), "output.bias": (320,)}, without=("ffn_gate.weight",
        "ffn_norm.weight"),
    )  # fmt: skip
    engine = open_engine(replace(AUTO, model=write(model, tmp_path / "phi2.gguf"), n_ctx=1024), trial=Trial())
    assert engine.info.engine == "llama"
    assert any("the graph engine does not support architecture phi2" in note for note in engine.info.notes)
    assert len(generate(engine, 0, 50, 3)) == 4
    engine.close()


def test_a_stored_choice_holds_for_its_options_only() -> None:
    store(DRAFT, AUTO, FASTER)
    assert choose(DRAFT, AUTO) == FASTER
    assert choose(DRAFT, replace(AUTO, calibrate="force")) == FASTER._replace(is_due=True)
    assert choose(DRAFT, replace(AUTO, calibrate="off")).engine == "llama"
    for other in (replace(AUTO, threads=1), replace(AUTO, n_seq=2), replace(AUTO, kv_type="q8_0")):
        assert choose(DRAFT, other).is_due


def test_a_stored_choice_holds_for_the_gpus_it_was_made_with_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp's engine computes on all GPUs."""
    gpu = SimpleNamespace(is_cpu=False, description="a GPU")
    monkeypatch.setattr(module, "device_of", lambda options: gpu)
    monkeypatch.setattr(module, "device_names", lambda: ("a GPU", "another", "cpu"))
    store(DRAFT, AUTO, FASTER)
    assert choose(DRAFT, AUTO) == FASTER
    monkeypatch.setattr(module, "device_names", lambda: ("a GPU", "cpu"))
    assert choose(DRAFT, AUTO).is_due


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"engine": "graph", "reason": "by hand"}', "[" * 100_000])
def test_a_damaged_store_is_no_choice_and_a_line_says_so(content: str, caplog: pytest.LogCaptureFixture) -> None:
    assert choose(DRAFT, AUTO).is_due and not caplog.text  # there is no stored choice
    store(DRAFT, AUTO, FASTER)
    stored_in(DRAFT, AUTO).write_text(content)
    assert choose(DRAFT, AUTO).is_due
    assert stored_in(DRAFT, AUTO).name in caplog.text


def test_without_a_home_folder_no_choice_is_stored(homeless: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert choose(DRAFT, AUTO).is_due
    store(DRAFT, AUTO, FASTER)
    assert "set HOME or XDG_CACHE_HOME" in caplog.text
    assert choose(DRAFT, AUTO).is_due and not list(homeless.iterdir())


def test_a_pipe_in_place_of_the_store_is_no_choice() -> None:
    store(DRAFT, AUTO, FASTER)
    stored_in(DRAFT, AUTO).unlink()
    os.mkfifo(stored_in(DRAFT, AUTO))
    assert choose(DRAFT, AUTO).is_due
    store(DRAFT, AUTO, FASTER)
    assert choose(DRAFT, AUTO) == FASTER


def test_the_first_start_compares_and_later_ones_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked = Clocked(llama=10, graph=5)
    monkeypatch.setattr(compare, "measure", clocked)
    for n_asked in (2, 2):
        engine = open_engine(AUTO, trial=Trial())
        assert engine.info.engine == "graph"
        assert any(
            "engine auto took graph: the graph engine has 2.00 times llama.cpp's speed" in note
            for note in engine.info.notes
        )
        assert len(generate(engine, 0, 50, 3)) == 4
        engine.close()
        assert len(clocked.asked) == n_asked
    assert estimate_engine(AUTO) == estimate_engine(replace(AUTO, engine="graph"))
    open_engine(AUTO).close()
    open_engine(replace(AUTO, calibrate="force")).close()
    assert len(clocked.asked) == 2, "nobody let them"
    open_engine(replace(AUTO, calibrate="force"), trial=Trial()).close()
    assert len(clocked.asked) == 4


def test_what_is_missing_shows_when_the_weights_are_looked_at(tmp_path: Path) -> None:
    model = replace(MODELS["llama"], tensors={"blk.0.ffn_down.scale": (1,)})
    options = replace(AUTO, model=write(model, tmp_path / "scaled.gguf"), n_ctx=2048)
    assert choose(options.model, options).is_due, "the header is that of a model it serves"
    engine = open_engine(options, trial=Trial())
    assert engine.info.engine == "llama"
    assert any("a use of blk.0.ffn_down.scale" in note for note in engine.info.notes)
    engine.close()
    assert not choose(options.model, options).is_due, "that will not change"


def test_a_stored_choice_that_no_longer_holds_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choose", lambda *a: Choice("graph", "measured"))
    engine = open_engine(replace(AUTO, flash_attn="off"))
    assert engine.info.engine == "llama"
    assert any("not fused" in note for note in engine.info.notes)
    engine.close()
