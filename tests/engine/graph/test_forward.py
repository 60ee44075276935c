"""Graphs of small batches, which share one memory."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from tests.engine.conftest import DRAFT
from tests.engine.drive import tokens_of
from tests.engine.graph.conftest import SMALL
from uma_core.engine.api import Batch, DecodeStatus
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.graph.forward import N_SMALL


def computed(engine: GraphEngine, n: int) -> np.ndarray:
    """Return the logits of a call of n rows."""
    batch = Batch(engine.info.n_batch)
    for i, token in enumerate(tokens_of(engine, n)):
        batch.add(int(token), i, 0, True)
    assert engine.decode(batch, [None] * n).status is DecodeStatus.OK
    logits = np.stack([engine.logits(row) for row in range(n)])
    engine.kv_truncate(0, 0)
    return logits


def test_graphs_whose_memory_moved_for_a_larger_one_compute_the_same() -> None:
    with closing(GraphEngine(DRAFT, SMALL)) as engine:
        assert engine.decoder is not None
        sizes = (1, 2, 5, N_SMALL)
        expected = {n: computed(engine, n) for n in sizes}
        engine.decoder.forwards.close()  # they are built and placed again on demand
        for n in (*sizes, *sizes[::-1]):
            assert np.array_equal(computed(engine, n), expected[n])


def test_small_graphs_take_no_more_memory_than_the_largest() -> None:
    with closing(GraphEngine(DRAFT, SMALL)) as engine:
        assert engine.decoder is not None
        n_logits = 4 * N_SMALL * engine.info.n_vocab
        assert n_logits <= engine.decoder.forwards.n_bytes < 2 * n_logits
