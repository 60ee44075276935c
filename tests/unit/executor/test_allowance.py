"""What a tick may take, as an operator reads it, and what is counted by it."""

from __future__ import annotations

import uma_core.metrics as m
from tests.unit.executor.rig import Rig
from uma_core.executor import view
from uma_core.policy.knobs import Knobs
from uma_core.types import Lane

LONG = "a long prompt, " * 120


def budget_ms(rig: Rig) -> float | None:
    return view.take(rig.executor, rig.clock.now_ns()).tick["budget_ms"]


def stream(rig: Rig, lane: Lane) -> None:
    """One stream that decodes, for so long that its cost is known."""
    rig.submit(lane.name, "hello", lane=lane, max_tokens=2000)
    for _ in range(200):
        rig.tick()


def test_nobody_waits_for_the_end_of_a_tick_without_streams() -> None:
    rig = Rig()
    assert budget_ms(rig) is None
    rig.submit("a", LONG, max_tokens=1)
    rig.tick()
    assert budget_ms(rig) is None


def test_a_chat_limits_the_tick_to_its_gap() -> None:
    rig = Rig(knobs=Knobs(guard_floor_ns=0))
    stream(rig, Lane.INTERACTIVE)
    n_past = next(iter(rig.executor.table)).n_past
    solo_ms = rig.executor.cost.solo_step_ns(n_past) / 1e6
    alone = budget_ms(rig)
    assert alone is not None
    assert solo_ms < alone < 1.3 * solo_ms
    rig.submit("paste", LONG, lane=Lane.BACKGROUND, max_tokens=1)
    for _ in range(50):
        rig.tick()
        now = budget_ms(rig)
        assert now is not None and now >= solo_ms, "work beside the chat does not take its budget away"


def test_background_streams_have_the_tick_budget() -> None:
    rig = Rig(knobs=Knobs(tick_budget_ns=700_000_000))
    stream(rig, Lane.BACKGROUND)
    assert budget_ms(rig) == 700.0


def test_ticks_over_their_budget_are_counted() -> None:
    rig = Rig(knobs=Knobs(guard_floor_ns=0))
    stream(rig, Lane.INTERACTIVE)
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


def test_each_gap_is_judged_by_the_limit_that_held_for_it() -> None:
    rig = Rig(knobs=Knobs(guard_floor_ns=0))
    stream(rig, Lane.INTERACTIVE)
    stretch = rig.registry.histogram(m.GAP_STRETCH)
    assert sum(stretch.counts) > 0
    n_within = sum(stretch.counts[: stretch.bounds.index(1.0) + 1])
    rig.clock.advance(10**9)
    rig.tick()
    assert sum(stretch.counts[: stretch.bounds.index(1.0) + 1]) == n_within, "a second is too long"
    assert stretch.highest > 1.0


def test_background_gaps_are_nobodys_promise() -> None:
    rig = Rig()
    stream(rig, Lane.BACKGROUND)
    assert sum(rig.registry.histogram(m.GAP_STRETCH).counts) == 0
