"""The estimate of the graph engine's memory, and what it costs to make it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from tests.engine.conftest import DRAFT
from tests.engine.graph.conftest import SMALL
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.graph.estimate import estimate
from uma_core.engine.llama.model import LlamaModel


@pytest.mark.parametrize("load_mode", ["auto", "mmap", "none"])
def test_the_estimate_is_what_is_taken(load_mode: str, is_stock: bool) -> None:
    options = replace(SMALL, engine="graph", load_mode=load_mode)
    expected = estimate(DRAFT, options, is_stock)
    with closing(GraphEngine(DRAFT, options, is_stock=is_stock)) as engine:
        used = engine.memory()
        assert (used.weights, used.kv) == (expected.weights, expected.kv)
        assert 0 < used.compute <= expected.compute


def test_an_estimate_reads_no_texts_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take 0.2 s with a large vocabulary."""
    monkeypatch.delattr(LlamaModel, "_all_pieces")
    assert estimate(DRAFT, SMALL).weights > 0
