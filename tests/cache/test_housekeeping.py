"""Sequences that nobody uses leave in idle time, and come back."""

from __future__ import annotations

import pytest

from tests.cache.asking import park_one, text, until, world
from tests.cache.world import CELL, check_idle
from uma_core.cache.settings import CacheSettings


def test_residents_that_nobody_uses_leave_and_come_back() -> None:
    w = world(CacheSettings(is_on=True, ram_bytes=10**9, park_idle_ns=50_000_000))
    w.ask("a", text(400))
    w.clock.advance(60_000_000)
    seconds = [w.executor.idle()]
    while seconds[-1] == 0.0:
        seconds.append(w.executor.idle())
        w.check()
    assert seconds[-1] is None and w.engine.kv_len(0) == 0
    assert w.cache.store.ram.n_bytes == 407 * CELL
    w.ask("b", text(400))
    assert w.cached("b") == 399
    assert w.executor.idle() == pytest.approx(0.05, abs=0.01)


def test_idle_ones_may_leave_at_once_and_those_that_cannot_are_not_looked_at_without_end() -> None:
    w = world(CacheSettings(is_on=True, ram_bytes=300 * CELL, park_idle_ns=0), n_seq_max=1, n_ctx=2048)
    w.ask("a", text(400))
    for _ in range(100):
        if (seconds := w.executor.idle()) != 0.0:
            break
    assert seconds is not None and seconds > 0.1
    w.submit("waits", text(500, 2), max_tokens=10)  # judged beside the cells that another one holds
    w.submit("too", text(500, 3), max_tokens=10)
    w.run()
    assert {"waits", "too"} <= set(w.finals)
    check_idle(w)


def test_residents_stay_where_leaving_would_drive_others_out() -> None:
    w = world(CacheSettings(is_on=True, ram_bytes=300 * CELL, park_idle_ns=50_000_000))
    w.ask("a", text(400))
    w.clock.advance(60_000_000)
    while w.executor.idle() == 0.0:
        pass
    assert w.engine.kv_len(0) == 407
    w.ask("b", text(400))
    assert w.cached("b") == 399


def test_a_smaller_budget_takes_effect_once_nothing_keeps_the_bytes() -> None:
    """Before, what a parked stream kept stayed until the next snapshot, however long the daemon was idle."""
    w = world(n_seq_max=1, n_ctx=2048)
    park_one(w)
    until(w, lambda: bool(w.cache.store.ram.n_bytes))
    w.executor.set_cache(CacheSettings(is_on=True, ram_bytes=400 * CELL))
    w.run()
    while w.executor.idle() == 0.0:
        pass
    assert w.cache.store.ram.n_bytes <= 400 * CELL
    check_idle(w)
