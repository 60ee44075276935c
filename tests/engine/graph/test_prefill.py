"""Prompts that are read in slots of the graph engine: what is refused, given up and reported."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.drive import FOREVER, read, tokens_of
from tests.engine.graph.conftest import batch_of
from uma_core.engine.api import DecodeStatus
from uma_core.engine.graph.engine import GraphEngine
from uma_core.errors import UmaError


@pytest.mark.parametrize("tokens", [[], [-1], [8192], [1] * 257])
def test_a_chunk_that_cannot_be_read_is_refused(engine: GraphEngine, tokens: list[int]) -> None:
    with pytest.raises(UmaError):
        engine.prefill_open(0, np.array(tokens, np.int32), True)
    assert read(engine, 0, tokens_of(engine, 30)) >= 0, "no slot is lost"
    assert engine.prefill_open(1, tokens_of(engine, 9), True) and engine.prefill_open(2, tokens_of(engine, 9), True)


def test_an_abort_leaves_prompts_alone(engine: GraphEngine) -> None:
    engine.abort()
    engine.prefill_open(0, tokens_of(engine, 100), True)
    assert engine.prefill_run(0, FOREVER, 1, 1).fraction == 1.0
    assert engine.decode(batch_of((6, 0, 1)), [None]).status is DecodeStatus.ABORTED


def test_progress_does_not_follow_from_a_chunk_of_another_size(engine: GraphEngine) -> None:
    """If a step's time is that of the weights, eight tokens take nearly as long as 256: their time does not scale to
    256.
    """
    for n in (256, 8):
        read(engine, 0, tokens_of(engine, n), False)
        engine.kv_truncate(0, 0)
    engine.prefill_open(0, tokens_of(engine, 256), False)
    seen = [0.0]
    while seen[-1] < 1.0:
        seen.append(engine.prefill_run(0, 0, 1, 1).fraction)
    assert seen[-2] > 0.4, "the last of some ninety pieces is not more than half of the chunk"


def test_pages_of_a_given_up_chunk_come_back(engine: GraphEngine) -> None:
    read(engine, 0, tokens_of(engine, 40), False)
    before = engine._pages.n_free
    engine.prefill_open(0, tokens_of(engine, 200), False)
    engine.prefill_run(0, 0, 1, 1)
    engine.prefill_close(0)
    assert (engine._pages.n_free, engine.kv_len(0)) == (before, 40)
