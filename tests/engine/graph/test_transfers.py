"""KV that moves between sequences, snapshots and devices."""

from __future__ import annotations

from tests.engine.conftest import empty
from tests.engine.drive import finish, read, step, tokens_of
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
