"""The options with which an engine is opened: no more positions than the model was trained for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.conftest import DRAFT
from tests.engine.graph.heads import with_eagle
from tests.engine.graph.models import MODELS, write
from uma_core import machine
from uma_core.config.options import EngineOptions
from uma_core.engine.header import Header
from uma_core.engine.select.open import estimate_engine, open_engine
from uma_core.errors import ErrorCode, UmaError

OPTIONS = EngineOptions(model=str(DRAFT), threads=1, n_seq=2, n_batch=64, n_ubatch=64, calibrate="off")


@pytest.mark.parametrize("engine", ["llama", "graph", "auto"])
def test_sequences_get_no_more_positions_than_the_model_was_trained_with(engine: str) -> None:
    options = replace(OPTIONS, engine=engine, n_ctx=1 << 20)
    opened = open_engine(options)
    info = opened.info
    opened.close()
    assert info.n_ctx_seq == info.n_ctx_train and info.n_ctx == 2 * info.n_ctx_train
    assert any(
        note.startswith(f"engine.n_ctx {1 << 20} is lowered to {info.n_ctx}: 2 sequences") for note in info.notes
    )
    assert estimate_engine(options) == estimate_engine(replace(options, n_ctx=info.n_ctx))


@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_nor_does_a_sequence_that_may_use_the_whole_pool(engine: str) -> None:
    options = replace(OPTIONS, engine=engine, kv_mode="unified", n_ctx=1 << 20)
    opened = open_engine(options)
    info = opened.info
    opened.close()
    assert info.n_ctx_seq == info.n_ctx_train and info.n_ctx == 2 * info.n_ctx_train


def test_a_trained_context_that_llama_cpp_cannot_count_limits_none(tmp_path: Path) -> None:
    """It keeps the number in 32 bits, and returns it with a sign: a sequence had less than no positions."""
    path = write(replace(MODELS["llama"], meta={"context_length": (1 << 32) - 1}), tmp_path / "model.gguf")
    opened = open_engine(replace(OPTIONS, model=str(path), engine="llama", kv_mode="unified", n_ctx=256))
    n_ctx_seq = opened.info.n_ctx_seq
    opened.close()
    assert n_ctx_seq == 256


def test_fewer_positions_are_as_they_were_asked_for() -> None:
    opened = open_engine(replace(OPTIONS, engine="llama", n_ctx=1024))
    info = opened.info
    opened.close()
    assert (info.n_ctx, info.n_ctx_seq) == (1024, 512) and not any("lowered" in note for note in info.notes)


def test_more_threads_than_the_control_group_gives_time_for_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notes are logged at the start, and `status` has them."""
    monkeypatch.setattr(machine, "cpu_quota", lambda: 1.0)
    for n_threads, is_noted in ((2, True), (1, False), (0, False)):
        opened = open_engine(replace(OPTIONS, engine="graph", threads=n_threads))
        notes = opened.info.notes
        opened.close()
        assert any(note.startswith("engine.threads is 2, but the control group") for note in notes) == is_noted


def test_the_embedded_model_is_served_as_it_was_trained_by_default() -> None:
    opened = open_engine(EngineOptions(engine="llama", threads=1, calibrate="off"))
    info = opened.info
    opened.close()
    assert info.n_ctx_seq <= info.n_ctx_train


@pytest.mark.parametrize(("engine", "n"), [("llama", 1), ("graph", 2), ("auto", 1)])
def test_the_header_is_read_once(engine: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time takes as long as a large vocabulary needs. The graph engine has a header of its own."""
    seen: list[str] = []
    read = Header._open

    def reading(header: Header, path: str) -> None:
        seen.append(path)
        read(header, path)

    monkeypatch.setattr(Header, "_open", reading)
    options = replace(OPTIONS, engine=engine)
    estimate_engine(options)
    assert len(seen) == n
    open_engine(options).close()
    assert len(seen) == 2 * n


@pytest.mark.parametrize("has_own", [False, True])
def test_a_model_that_only_drafts_is_refused_as_what_it_is(has_own: bool, tmp_path: Path) -> None:
    """Used alone, it would write nonsense, or be refused because it lacks a context."""
    _, path = with_eagle(tmp_path, True, has_own)
    for attempt in (estimate_engine, open_engine):
        with pytest.raises(UmaError, match=r"EAGLE 3.*speculation\.draft_model") as caught:
            attempt(replace(OPTIONS, model=path))
        assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED
