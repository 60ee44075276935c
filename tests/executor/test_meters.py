"""Ticks over their budget, and gaps judged by what was promised."""

from __future__ import annotations

from random import Random

import pytest

import uma_core.metrics.catalog as m
from tests.executor.rig import STEP_NS, Rig, stream
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.policy.config import SchedulerConfig
from uma_core.server.operations.status import verdict
from uma_core.types import Priority, Slo


def test_ticks_over_their_budget_are_counted() -> None:
    rig = Rig(config=SchedulerConfig(guard_floor_ns=0))
    stream(rig, Priority.INTERACTIVE)
    count = rig.registry.counter(m.TICKS_OVER_BUDGET)
    before = count.value
    rig.engine.decode = slowed(rig, rig.engine.decode)  # type: ignore[method-assign]
    rig.submit("b", "more", max_tokens=2)
    for _ in range(5):
        rig.tick()
    assert count.value > before


def slowed(rig: Rig, decode):
    def call(*args):
        rig.clock.advance(10**9)
        return decode(*args)

    return call


def gaps_over(rig: Rig) -> int:
    """Return the booked gaps that exceeded the promise."""
    stretch = rig.registry.histogram(m.GAP_STRETCH)
    return sum(stretch.counts[stretch.bounds.index(1.0) + 1 :])


def gaps(rig: Rig) -> m.Distribution:
    return rig.registry.snapshot().merged(m.GAP_STRETCH)


def judged(rig: Rig, since: m.Distribution | None = None) -> str:
    now = gaps(rig)
    return str(verdict(now if since is None else now.minus(since.counts, since.total))["slo_verdict"])


def test_a_gap_is_judged_by_what_was_promised() -> None:
    rig = Rig(config=SchedulerConfig(guard_floor_ns=0))
    stream(rig, Priority.INTERACTIVE)
    before = gaps_over(rig)
    rig.clock.advance(10**9)
    for _ in range(40):
        rig.tick()
    assert gaps_over(rig) == before + 1, "a second is too long"
    assert rig.registry.histogram(m.GAP_STRETCH).highest > 1.0


@pytest.mark.parametrize("overhead", [1, 20])
@pytest.mark.parametrize("n_chats", [1, 2, 3, 4])
def test_nothing_is_missed_while_only_chats_run(n_chats: int, overhead: int) -> None:
    """A second row may take longer than a second call, calls are noisy, and the host takes its time. A chat alone has
    all of these too, so none of them counts.
    """
    random = Random(n_chats)
    rig = Rig(
        config=SchedulerConfig(guard_floor_ns=0),
        cost=CPU_SHAPE,
        jitter=lambda ns: ns * (1.0 + abs(random.gauss(0.0, 0.12))),
    )
    for i in range(n_chats):
        rig.submit(f"chat {i}", "hello", priority=Priority.INTERACTIVE, max_tokens=300)
    known = None
    for i in range(320):
        rig.tick()
        rig.clock.advance(overhead * STEP_NS)
        known = gaps(rig) if i == 80 else known  # by then calls and host are measured
    assert judged(rig, known) == "met"


def test_chats_that_somebody_elses_work_delays_are_told_so() -> None:
    rig = Rig(config=SchedulerConfig(guard_floor_ns=0), cost=CPU_SHAPE)
    for i in range(3):
        rig.submit(f"chat {i}", "hello", priority=Priority.INTERACTIVE, max_tokens=300)
    for i in range(280):
        rig.tick()
        if i % 10 == 0:
            rig.clock.advance(60 * STEP_NS)
    assert judged(rig) == "missed"


def test_a_stream_with_a_target_is_judged_by_its_target() -> None:
    rig = Rig(config=SchedulerConfig(guard_floor_ns=0), cost=CPU_SHAPE)
    rig.submit("in a hurry", "hello", priority=Priority.INTERACTIVE, max_tokens=200, slo=Slo(0, 2 * STEP_NS))
    rig.run()
    assert judged(rig) == "missed"
    rig = Rig(config=SchedulerConfig(guard_floor_ns=0), cost=CPU_SHAPE)
    rig.submit("patient", "hello", priority=Priority.INTERACTIVE, max_tokens=200, slo=Slo(0, 500 * STEP_NS))
    for i in range(200):
        rig.tick()
        rig.clock.advance((i % 5) * 50 * STEP_NS)
    assert judged(rig) == "met"


def test_background_gaps_are_nobodys_promise() -> None:
    rig = Rig()
    stream(rig, Priority.BACKGROUND)
    assert sum(rig.registry.histogram(m.GAP_STRETCH).counts) == 0
