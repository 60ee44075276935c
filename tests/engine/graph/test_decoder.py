"""Decode calls of the graph engine: batches that are refused, and graphs for those that are not."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.engine.conftest import DRAFT, empty
from tests.engine.drive import generate, step, tokens_of
from tests.engine.graph.conftest import SMALL, batch_of
from uma_core.engine.api import Batch, DecodeStatus
from uma_core.engine.graph.engine import GraphEngine
from uma_core.errors import ErrorCode, UmaError


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(-1, 0, 0)],
        [(8192, 0, 0)],
        [(1, 1, 0)],  # a gap
        [(1, 0, 4)],
        [(1, 0, -1)],
        [(1, 0, 0), (1, 0, 1), (1, 1, 0)],  # a sequence in two places
        [(1, 0, 0), (1, 2, 0)],
    ],
)
def test_a_batch_that_would_end_the_process_is_refused(engine: GraphEngine, rows: list[tuple[int, int, int]]) -> None:
    batch = batch_of(*rows)
    assert engine.decode(batch, [None] * batch.n_rows).status is DecodeStatus.BAD_BATCH
    assert [engine.kv_len(seq) for seq in range(4)] == [0] * 4
    assert len(generate(engine, 0, 5, 3)) == 4


def test_a_sequence_whose_prompt_is_in_progress_cannot_decode(engine: GraphEngine) -> None:
    engine.prefill_open(1, tokens_of(engine, 50), False)
    assert engine.decode(batch_of((1, 0, 1)), [None]).status is DecodeStatus.BAD_BATCH
    step(engine, [(0, 7)])
    with pytest.raises(UmaError) as caught:
        engine.copy_prefix(0, 1, 1)
    assert caught.value.error is ErrorCode.BAD_BATCH


def test_many_batch_shapes_in_turn(engine: GraphEngine) -> None:
    """There are more shapes than are kept: graphs are freed and built again, and large ones take turns in one
    memory.
    """
    for n in [*range(1, 17), 40, 17, 40, 200, 3]:
        for n_out in {0, 1, n}:
            batch = Batch(SMALL.n_batch)
            batch.extend(tokens_of(engine, n, n), 0, 0, False)
            batch.want_logits[n - n_out : n] = 1
            batch.n_rows = n_out
            outcome = engine.decode(batch, [None] * n_out)
            assert outcome.status is DecodeStatus.OK and len(outcome.tokens) == n_out
            engine.kv_truncate(0, 0)


def test_graphs_of_riding_rows_are_there_from_the_beginning() -> None:
    """No step waits until one is built."""
    with closing(GraphEngine(DRAFT, SMALL)) as engine:
        sizes = engine.info.capabilities.ride_rows
        assert sizes == tuple(sorted(sizes)) and sizes[-1] <= SMALL.n_batch
        assert engine.decoder is not None
        before = engine.decoder.forwards.n_bytes
        for rows in sizes:
            batch = batch_of((5, 0, 0))
            batch.extend(tokens_of(engine, rows - 1), 0, 1, False)
            assert engine.decode(batch, [None]).status is DecodeStatus.OK
            empty(engine)
        assert engine.decoder.forwards.n_bytes == before
