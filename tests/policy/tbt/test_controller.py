"""What the controller learns from a stream's gaps, as seen from outside: in the room that other work gets."""

from __future__ import annotations

import pytest

from tests.policy.build import CPU, MS, NOW, guarded, prefill_item, reading, report, state_of, talking
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.pipeline import compose
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
STAGES = ("decode_first", "prefill_order", "prefill_budget", "latency_guard")
SOLO = CPU.solo_step_ns(110)
COARSE = reading(1, BACK, n_prompt=3000, n_chunk=128, chunk_fraction=0.3)  # its pieces fit only long gaps


def after(times, n_ticks=1, memory=None, **more):
    """Return the memory after ticks beside a chat and a background prompt. The ticks took these multiples of their
    planned time.
    """
    memory = memory or guarded()
    now, tick = NOW, 1000
    for factor in times:
        views = talking(0), reading(1, BACK, n_prompt=3000)
        plan = compose(STAGES)(state_of(*views, tick=tick, now_ns=now, memory=memory, **more))
        memory, planned = plan.memory, plan.memory.latency_guard.planned_ns
        now, tick = now + int(factor * planned), tick + n_ticks
    return memory._replace(
        latency_guard=memory.latency_guard._replace(t_plan_ns=NOW - int(times[-1] * planned), tick=999)
    )


def room(memory, *views):
    """Return the time for a background prompt in the next everyday gap, in steps."""
    return (
        compose(STAGES)(state_of(talking(0), *(views or (reading(1, BACK, n_prompt=3000),)), memory=memory)).run_ns
        / SOLO
    )


def test_on_an_exact_machine_all_of_the_everyday_gap_is_used():
    assert room(after([1.0] * 200)) == pytest.approx(0.2, abs=0.02)


def test_gaps_that_take_longer_than_planned_leave_less_for_others_and_the_room_recovers():
    calm, noisy = after([1.0] * 100), after([1.0, 1.12] * 50)
    assert room(noisy) < 0.6 * room(calm)
    assert room(after([1.0] * 400, memory=noisy)) > 1.5 * room(noisy)


@pytest.mark.parametrize("factor", [1.3, 3.0, 50.0])
def test_however_busy_the_machine_is_background_work_does_not_stop(factor):
    assert room(after([factor] * 60)) == pytest.approx(0.4 * 0.2, abs=0.02)


def test_one_outlier_moves_little():
    calm = after([1.0] * 200)
    assert room(after([9.0], memory=calm)) > 0.7 * room(calm)


def test_a_plan_that_was_carried_out_many_times_is_judged_by_its_calls():
    def learned(factor):
        calls = tuple(report(Phase.DECODE, 1, SOLO, int(factor * SOLO)) for _ in range(20))
        state = state_of(
            talking(0), tick=1020, reports=calls, memory=guarded(tick=1000, t_plan_ns=NOW - 30 * SOLO, planned_ns=SOLO)
        )
        return compose(STAGES)(state).memory.latency_guard.error

    assert learned(1.0) < 0.05 < learned(1.2)


def test_a_pause_between_two_requests_of_the_chat_is_no_gap():
    memory = after([1.0] * 50)
    alone = compose(STAGES)(state_of(reading(1, BACK), tick=1000, memory=memory)).memory
    back = compose(STAGES)(state_of(talking(0), tick=1001, now_ns=NOW + 10_000 * MS, memory=alone)).memory
    assert back.latency_guard.error <= memory.latency_guard.error


class TestLongGaps:
    def n_long(self, n, **config):
        """Return how many of n gaps of a chat are long, beside a prompt that needs long gaps."""
        memory, count = guarded(), 0
        for tick in range(n):
            plan = compose(STAGES)(
                state_of(talking(0), COARSE, tick=tick, memory=memory, config=SchedulerConfig(**config))
            )
            memory, count = plan.memory, count + (prefill_item(plan) is not None)
        return count

    @pytest.mark.parametrize("share", [0.0, 0.02, 0.04, 0.2])
    def test_they_are_a_share_of_all_gaps(self, share):
        assert self.n_long(500, long_tick_share=share) == pytest.approx(500 * share, abs=1)

    def test_no_two_are_saved_up(self):
        for _ in range(100):
            plan = compose(STAGES)(state_of(talking(0), memory=guarded(credit=1.0)))
        again = compose(STAGES)(state_of(talking(0), COARSE, tick=1001, memory=plan.memory))
        assert prefill_item(again) is not None
        assert prefill_item(compose(STAGES)(state_of(talking(0), COARSE, tick=1002, memory=again.memory))) is None

    def test_rounds_of_a_repeated_plan_count(self):
        memory = guarded(tick=980, t_plan_ns=NOW - 20 * SOLO, planned_ns=SOLO)
        plan = compose(STAGES)(state_of(talking(0), tick=1000, memory=memory))
        assert plan.memory.latency_guard.credit == pytest.approx(20 * SchedulerConfig().long_tick_share)

    @pytest.mark.parametrize("error", [0.0, 0.05, 0.15, 0.25])
    def test_they_stay_below_the_pause_limit_with_the_error_that_comes_on_top(self, error):
        plan = compose(STAGES)(state_of(talking(0), COARSE, memory=guarded(credit=1.0, error=error)))
        gap = SOLO + plan.run_ns
        assert plan.guard.kind == "long"
        assert max(gap * (1.0 + error), gap + 0.3 * SOLO) <= 2.0 * SOLO + 1
        assert gap >= 1.5 * SOLO, "it is used all the same"


class TestComputedAhead:
    """If a chat's next step is computed ahead, the host's time is hidden while the chat is alone. In a gap with other
    work it is not hidden.
    """

    HOST_NS = 1 * MS

    @pytest.mark.parametrize("n_long", [0.0, 1.0])
    def test_other_work_leaves_the_hosts_time_free(self, n_long):
        prompt = COARSE if n_long else reading(1, BACK, n_prompt=3000)
        memory = guarded(credit=n_long, error=0.0)
        views = talking(0), prompt
        plans = [
            compose(STAGES)(state_of(*views, memory=memory, overhead_ns=self.HOST_NS, computes_ahead=ahead))
            for ahead in (False, True)
        ]
        assert plans[0].run_ns - plans[1].run_ns == self.HOST_NS

    def test_a_host_that_takes_all_of_an_everyday_gap_leaves_long_ones(self):
        memory = guarded(error=0.0)
        slow = {"overhead_ns": int(0.25 * SOLO), "computes_ahead": True}
        held = compose(STAGES)(state_of(talking(0), reading(1, BACK, n_prompt=3000), memory=memory, **slow))
        assert prefill_item(held) is None
        long = compose(STAGES)(
            state_of(talking(0), reading(1, BACK, n_prompt=3000), memory=guarded(credit=1.0, error=0.0), **slow)
        )
        assert long.guard.kind == "long" and SOLO + long.run_ns + slow["overhead_ns"] <= 1.7 * SOLO + 1
