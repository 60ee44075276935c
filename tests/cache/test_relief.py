"""What the cache drops if memory is short: never what a request still needs."""

from __future__ import annotations

from tests.cache.asking import park_one, text, until, world
from tests.cache.world import CELL, answer, check_idle
from uma_core.cache.relief import drop_idle, forget, trim_snapshots
from uma_core.types import Priority


def test_half_of_the_snapshots_go_and_the_rest_is_found() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    for i in range(5):
        w.ask(f"r{i}", text(300, i))
    assert w.cache.store.ram.n_bytes == 4 * 307 * CELL
    assert trim_snapshots(w.cache) == 2 * 307 * CELL
    w.check()
    for i in range(4):
        w.ask(f"again{i}", text(300, i))
    assert sorted(w.cached(f"again{i}") for i in range(4)) == [0, 0, 299, 299]
    check_idle(w)


def test_what_a_parked_stream_needs_stays() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    park_one(w)
    until(w, lambda: bool(w.cache.store.ram.n_bytes))
    assert trim_snapshots(w.cache) == 0
    w.run()
    assert w.texts["work"].encode() == bytes(answer(text(500), 60))


def test_sequences_that_nobody_uses_are_emptied_and_running_ones_stay() -> None:
    w = world()
    w.ask("idle", text(300, 1))
    w.submit("runs", text(200, 2), max_tokens=30, priority=Priority.INTERACTIVE)
    until(w, lambda: len(w.texts.get("runs", "")) > 3)
    assert drop_idle(w.cache) == 307 * CELL
    assert drop_idle(w.cache) == 0
    w.check()
    w.run()
    assert w.texts["runs"].encode() == bytes(answer(text(200, 2), 30))
    check_idle(w)


def test_the_bytes_of_a_retired_engine_go_at_once() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    for i in range(2):
        w.ask(f"r{i}", text(300, i))
    (seg,) = {node.seg for tree in w.cache.trees.values() for node in tree.nodes() if node.seg is not None}
    forget(w.cache)
    assert seg.blob is None and not w.cache.trees
