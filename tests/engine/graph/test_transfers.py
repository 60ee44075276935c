"""KV that moves between sequences, snapshots and devices."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from tests.engine.conftest import DRAFT, empty
from tests.engine.drive import finish, read, step, tokens_of
from tests.engine.graph.conftest import SMALL
from uma_core.engine.graph.engine import GraphEngine


def test_a_shared_prefix_takes_no_pages(engine: GraphEngine) -> None:
    read(engine, 0, tokens_of(engine, 192), False)
    pages = engine._pages
    before = pages.n_free
    for seq_id in (1, 2, 3):
        finish(engine.copy_prefix(0, seq_id, 192))
    assert pages.n_free == before
    firsts = step(engine, [(seq_id, 50) for seq_id in range(4)])
    assert before - pages.n_free == 4, "one page each for what they do not share"
    assert len(set(firsts)) == 1


def test_transfers_that_are_given_up_take_no_room(engine: GraphEngine) -> None:
    read(engine, 0, tokens_of(engine, 200))
    export = engine.export_state(0, 200)
    finish(export)
    for _ in range(3):
        transfer = engine.import_state(1, bytes(export.blob), 200)
        transfer.step(0)
        transfer.close()
        finish(engine.copy_prefix(0, 1, 192))
        engine.kv_truncate(1, 0)
    empty(engine)
    for seq in range(engine.info.n_seq_max):
        engine.fake_context(seq, engine.info.n_ctx_seq)


def test_a_snapshot_is_the_same_wherever_it_was_made() -> None:
    """Positions are in order, with K and V of a layer together. The CPU can read what a device wrote, and the
    reverse.
    """
    with closing(GraphEngine(DRAFT, SMALL)) as ours, closing(GraphEngine(DRAFT, SMALL, is_stock=True)) as stock:
        blobs, logits = [], []
        for engine in (ours, stock):
            read(engine, 0, tokens_of(engine, 150))
            export = engine.export_state(0, 150)
            finish(export)
            blobs.append(bytes(export.blob))
            step(engine, [(0, 50)])
            logits.append(engine.logits(0).copy())
        a, b = (np.frombuffer(blob, np.float16).astype(np.float32) for blob in blobs)
        assert np.abs(a - b).max() < 0.1 * a.std(), "rounding"
        for engine, blob in ((ours, blobs[1]), (stock, blobs[0])):
            finish(engine.import_state(2, blob, 150))
            step(engine, [(2, 50)])
            assert np.abs(engine.logits(0) - logits[0]).max() < 0.1 * logits[0].std()
