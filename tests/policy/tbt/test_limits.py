"""The limits that streams were promised."""

from __future__ import annotations

import pytest

from tests.policy.build import CPU, GPU, S, reading, state_of, talking
from uma_core.policy.config import DEFAULT_STAGES, SchedulerConfig
from uma_core.policy.index import index_of
from uma_core.policy.pipeline import compose
from uma_core.policy.tbt.limits import tbt_limits
from uma_core.types import Priority

SOLO = CPU.solo_step_ns(110)
BACK = Priority.BACKGROUND


@pytest.mark.parametrize(
    ("config", "slo", "everyday", "long"),
    [
        (SchedulerConfig(), 0, 1.2, 2.0),
        (SchedulerConfig(guard_cap=1.5), 0, 1.5, 2.0),
        (SchedulerConfig(guard_floor_ns=5 * SOLO), 0, 5.0, 5.0),  # the floor lifts the long limit with it
        (SchedulerConfig(), int(1.7 * SOLO), 1.7, 2.0),  # a request's own target replaces the everyday limit
        (SchedulerConfig(slo_tbt_ns=3 * SOLO), 0, 3.0, 3.0),
        (SchedulerConfig(), SOLO // 2, 1.0, 2.0),  # faster than the device: no everyday room at all
    ],
)
def test_everyday_and_long_limit(config, slo, everyday, long):
    state = state_of(talking(0, slo_tbt_ns=slo), config=config)
    limits = tbt_limits(state, index_of(state))
    assert limits.round_ns == limits.step_ns == SOLO
    assert limits.everyday_ns / SOLO == pytest.approx(everyday, rel=1e-3)
    assert limits.long_ns / SOLO == pytest.approx(long, rel=1e-3)


def test_the_strictest_stream_decides():
    state = state_of(talking(0, slo_tbt_ns=S), talking(1))
    assert tbt_limits(state, index_of(state)).everyday_ns < S


def test_the_round_of_several_streams_is_that_of_all():
    state = state_of(*[talking(i) for i in range(4)])
    assert tbt_limits(state, index_of(state)).round_ns == CPU.rows_ns(4, 440)


@pytest.mark.parametrize("n", [2, 8])
def test_several_streams_have_less_than_that_many_rounds(n):
    state = state_of(*[talking(i) for i in range(n)], cost=GPU)
    limits, step = tbt_limits(state, index_of(state)), GPU.solo_step_ns(110)
    assert int(2 * step) <= limits.long_ns < 2 * limits.round_ns
    assert int(1.2 * step) <= limits.everyday_ns < 1.2 * limits.round_ns


# At 1.15 little is left of one stream's limit, and no more is taken. From 1.3 on, the round alone exceeds it.
@pytest.mark.parametrize(
    ("round_x", "everyday", "long"),
    [(1, 1.2, 2), (1.1, 1.2, 2), (1.15, 1.2, 2), (1.3, 1.3975, 2), (2, 2.2, 2.75), (4, 4.4, 7)],
)
def test_each_stream_has_the_limits_that_it_would_have_alone_as_long_as_the_round_leaves_room(round_x, everyday, long):
    state = state_of(talking(0))
    limits = tbt_limits(state, index_of(state)._replace(round_ns=int(round_x * SOLO)))
    assert limits.everyday_ns / SOLO == pytest.approx(min(everyday, 1.2 * round_x), rel=1e-3)
    assert limits.long_ns / SOLO == pytest.approx(long, rel=1e-3)


class TestInThePlan:
    """Metrics and status judge gaps and ticks by the limits in the plan."""

    def plan(self, *views, stages=DEFAULT_STAGES, **more):
        return compose(stages)(state_of(*views, config=SchedulerConfig(stages=stages), **more))

    @pytest.mark.parametrize("stages", [DEFAULT_STAGES, ("decode_first",)], ids=["guarded", "guard off"])
    def test_a_gap_is_promised_with_the_guard_off_too(self, stages):
        plan = self.plan(talking(0), stages=stages)
        assert 1.2 * SOLO - 1 <= plan.tbt_limit_ns <= 1.3 * SOLO
        assert plan.tick_limit_ns == pytest.approx(1.2 * SOLO, rel=1e-3)

    def test_what_the_host_takes_between_two_calls_is_in_every_gap(self):
        assert self.plan(talking(0), overhead_ns=SOLO).tbt_limit_ns >= 2.4 * SOLO - 1

    def test_a_chat_whose_next_step_is_computed_ahead_is_promised_gaps_without_it(self):
        plan = self.plan(talking(0), overhead_ns=SOLO, computes_ahead=True)
        assert 1.2 * SOLO - 1 <= plan.tbt_limit_ns <= 1.3 * SOLO

    def test_a_tick_may_take_what_the_guard_let_in(self):
        plan = self.plan(talking(0), reading(1, n_prompt=300))
        assert plan.run_ns > 0.2 * SOLO and plan.tick_limit_ns == SOLO + plan.run_ns

    def test_background_streams_have_the_tick_budget_and_without_streams_nothing_is_limited(self):
        plan = self.plan(talking(0, BACK))
        assert (plan.tbt_limit_ns, plan.tick_limit_ns) == (0, SchedulerConfig().tick_budget_ns)
        plan = self.plan(reading(0))
        assert (plan.tbt_limit_ns, plan.tick_limit_ns) == (0, 0)


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("cost", [CPU, GPU])
def test_a_greater_cap_never_gives_less(n, cost):
    """Once, a limit of several streams that grows with their round fell from a cap of 1.2 to 1.3."""
    at = [state_of(*map(talking, range(n)), cost=cost, config=SchedulerConfig(guard_cap=1 + i / 20)) for i in range(21)]
    limits = [tbt_limits(state, index_of(state)).everyday_ns for state in at]
    assert limits == sorted(limits) and limits[-1] > limits[0]
