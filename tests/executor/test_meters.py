"""Ticks over their budget, and gaps judged by what was promised."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import uma_core.metrics.catalog as m
from tests.executor.rig import STEP_NS, Rig, stream
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.executor.meters import Meters
from uma_core.policy.config import SchedulerConfig
from uma_core.server.operations.status import verdict
from uma_core.session.draft import Draft
from uma_core.session.session import Grant, Session
from uma_core.types import Priority, Request, Slo

MS, S = 1_000_000, 1_000_000_000


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


class TestOneSeries:
    """Meters alone, without an executor."""

    def made(self, *gaps_ms: int, **fields: Any) -> tuple[m.Registry, Meters, Session]:
        """Return meters of a stream whose first token came at 1 s and whose further ones came after these gaps."""
        registry = m.new_registry()
        meters, now = Meters(registry), S
        session = Session(1, 1, Request("a", **fields), [1, 2], Grant(Priority.INTERACTIVE, 99, 0))
        session.t_admitted_ns = S // 4
        session.add_token(5, now)
        meters.on_token(session, 0, now)
        for gap in gaps_ms:
            last, now = now, now + gap * MS
            session.add_token(5, now)
            meters.on_token(session, last, now)
        return registry, meters, session

    def test_gaps_wait_until_they_are_booked(self) -> None:
        registry, meters, _ = self.made(10, 20)
        times = registry.histogram(m.INTER_TOKEN, lane="interactive")
        assert registry.counter(m.TOKENS_GENERATED).value == 1 and not sum(times.counts)
        meters.flush()
        meters.flush()
        assert registry.counter(m.TOKENS_GENERATED).value == 3
        assert (sum(times.counts), times.total, times.highest) == (2, 30 * MS, 20 * MS)

    def test_the_first_token_is_timed_from_the_request_and_its_prompt_from_its_sequence(self) -> None:
        registry, _, _ = self.made()
        assert registry.histogram(m.TTFT, lane="interactive").total == S
        assert registry.counter(m.PROMPT_TIME).value == S * 3 // 4
        assert registry.counter(m.SLO_VIOLATIONS, kind="ttft", lane="interactive").value == 0

    def test_targets_are_missed_by_what_is_longer(self) -> None:
        registry, meters, _ = self.made(10, 11, slo=Slo(S - 1, 10 * MS))
        meters.flush()
        assert registry.counter(m.SLO_VIOLATIONS, kind="ttft", lane="interactive").value == 1
        assert registry.counter(m.SLO_VIOLATIONS, kind="tbt", lane="interactive").value == 1

    def test_the_fifth_token_is_timed_once(self) -> None:
        registry, _, _ = self.made(1, 1, 1, 1, 1)
        times = registry.histogram(m.TTF5, lane="interactive")
        assert (sum(times.counts), times.total) == (1, S + 4 * MS)

    def test_the_worst_pause_is_that_of_a_streams_first_seconds(self) -> None:
        registry, meters, session = self.made(10, 500, 2600, 4000)
        meters.on_end(session)
        assert registry.histogram(m.WORST_PAUSE, lane="interactive").highest == 2600 * MS
        registry, meters, session = self.made()
        meters.on_end(session)
        assert not sum(registry.histogram(m.WORST_PAUSE, lane="interactive").counts), "one token has no pause"

    def test_the_typical_time_between_calls_is_a_median(self) -> None:
        meters = Meters(m.new_registry())
        for i in range(400):
            meters.on_overhead(10**9 if i % 5 == 4 else 100_000, is_ahead=False)
        for _ in range(400):
            meters.on_overhead(10**9, is_ahead=True)
        assert meters.overhead_ns == pytest.approx(100_000, rel=0.1)

    def test_calls_have_a_last_and_a_smoothed_time(self) -> None:
        registry = m.new_registry()
        meters = Meters(registry)
        meters.on_call(1, 100, 3)
        meters.on_call(4, 200, 5)
        assert (registry.gauge(m.DECODE_LAST).value, registry.gauge(m.DECODE_EWMA).value) == (200, 110)
        assert (registry.gauge(m.LAST_BATCH_SIZE).value, registry.counter(m.BATCH_CALLS).value) == (4, 2)

    @pytest.mark.parametrize(("budget_ns", "n"), [(0, 0), (9, 1), (10, 0), (11, 0)])
    def test_a_tick_is_over_its_budget_only_where_it_has_one(self, budget_ns: int, n: int) -> None:
        registry = m.new_registry()
        Meters(registry).on_tick(10, budget_ns)
        assert registry.counter(m.TICKS_OVER_BUDGET).value == n and registry.counter(m.TICKS).value == 1

    def test_drafts_are_counted_for_their_sources(self) -> None:
        registry = m.new_registry()
        meters = Meters(registry)
        meters.on_drafts(Draft((1, 2, 3), (1.0, 0.9, 0.8), "lookup", 4, n_forced=1), 3, 2)
        meters.on_saved("lookup", 7.0)
        meters.on_saved("lookup", -9.0)
        drafted = {name: registry.counter(m.DRAFTED, source=name).value for name in ("forced", "lookup", "draft")}
        accepted = {name: registry.counter(m.ACCEPTED_DRAFTS, source=name).value for name in ("forced", "lookup")}
        assert drafted == {"forced": 1, "lookup": 2, "draft": 0} and accepted == {"forced": 1, "lookup": 1}
        assert registry.gauge(m.DRAFTS_SAVED, source="lookup").value == -2.0
