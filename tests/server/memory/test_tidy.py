"""Memory is returned to the system once after each stretch of work."""

from __future__ import annotations

import uma_core.metrics.catalog as m
from uma_core.server.memory import budget
from uma_core.server.memory.tidy import IDLE_BEATS, Tidy


def test_memory_goes_back_once_after_work(monkeypatch):
    given = []
    monkeypatch.setattr(budget, "give_back", lambda: given.append(1))
    registry, generation = m.new_registry(), [1]
    ticks = registry.counter(m.TICKS)
    tidy = Tidy(registry, lambda: generation[0])

    def idle(n: int) -> list[bool]:
        return [tidy.beat() for _ in range(n)]

    for work in (lambda: ticks.add(5), lambda: generation.append(generation.pop() + 1)):
        work()
        assert idle(IDLE_BEATS) == [False] * IDLE_BEATS, "work was just done"
        assert idle(10) == [True] + [False] * 9
    for _ in range(10):
        ticks.add()
        assert not tidy.beat(), "never while work is done"
    assert len(given) == 2
