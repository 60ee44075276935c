"""Bytes per tick: the estimate, and what is cut if it exceeds the budget."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from tests.policy.build import (
    CPU,
    DEVICE,
    MIX_ROWS,
    MIXING,
    MS,
    NOW,
    S,
    cost_of,
    planned,
    prefill_item,
    reading,
    sids,
    state_of,
    talking,
)
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.policy import traffic
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.pipeline import compose
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
STAGES = ("decode_first", "prefill_order", "prefill_budget", "bmt_guard")
WEIGHTS = DEVICE.weight_bytes
CELL = DEVICE.kv_bytes_per_cell


run = functools.partial(planned, STAGES)


def gbs(n_bytes, config=None):
    """Return the budget in GB/s that allows n_bytes in one tick."""
    return n_bytes / (config or SchedulerConfig()).tick_budget_ns


def test_a_decode_call_reads_the_weights_once_and_each_context():
    assert traffic.decode_call(DEVICE, 2, 100 + 300) == WEIGHTS + 402 * CELL


def test_expected_experts_grow_with_the_tokens_of_a_call():
    moe = DEVICE._replace(n_expert=8, n_expert_used=2, expert_bytes=400_000_000)
    dense = WEIGHTS - 400_000_000
    assert traffic.weights(moe, 1) == pytest.approx(dense + 100_000_000, rel=1e-6)
    assert traffic.weights(moe, 2) == pytest.approx(dense + 400_000_000 * (1 - 0.75**2), rel=1e-6)
    assert traffic.weights(moe, 500) == pytest.approx(WEIGHTS, rel=1e-6)


def test_off_it_only_makes_the_estimate_in_every_tick():
    views = (talking(0), talking(1, BACK), reading(2, BACK, n_prompt=3000))
    for tick in range(1000, 1020):
        plan = run(state_of(*views, tick=tick))
        assert plan.bmt_budget == 0 and plan.bmt_bytes > WEIGHTS
    assert plan.items == compose(STAGES[:-1])(state_of(*views)).items


def test_prompt_work_is_cut_first_then_background_rows_never_interactive_ones():
    views = (talking(0), talking(2, BACK), talking(4, BACK), reading(5, BACK, n_prompt=3000))
    one_call = WEIGHTS + 111 * CELL
    slow = SchedulerConfig(stages=STAGES, tick_budget_ns=S)
    for n_calls, n_rows, reads in ((4.5, 3, True), (3.0, 3, False), (0.5, 1, False)):
        plan = run(state_of(*views, config=replace(slow, bmt_budget=gbs(n_calls * one_call, slow))))
        served = sids(plan, Phase.DECODE)
        assert 0 in served and len(served) == n_rows
        assert (prefill_item(plan) is not None) is reads


def test_the_run_is_shortened_before_it_is_dropped():
    views = (talking(0, BACK), reading(1, BACK, n_prompt=3000))
    free = run(state_of(*views))
    decode = traffic.decode_call(DEVICE, 1, views[0].n_past)
    allowed = decode + (free.bmt_bytes - decode) // 2
    plan = run(state_of(*views, config=SchedulerConfig(bmt_budget=allowed / free.run_ns)))
    assert 0 < plan.run_ns < free.run_ns
    assert plan.bmt_bytes <= allowed


def test_alone_nothing_is_ever_stopped():
    tiny = SchedulerConfig(bmt_budget=0.001)
    assert len(run(state_of(talking(0, BACK), talking(1, BACK), config=tiny)).items) == 1
    assert prefill_item(run(state_of(reading(0, BACK), config=tiny))) is not None


def test_what_starves_beside_a_chat_is_not_stopped():
    tiny, old = SchedulerConfig(bmt_budget=0.001), {"t_last_ns": NOW - 2 * S, "t_progress_ns": NOW - 2 * S}
    for starved, served in (({}, [0]), (old, [0, 2])):
        state = state_of(talking(0), talking(1, BACK), talking(2, BACK, **starved), config=tiny)
        assert sids(run(state), Phase.DECODE) == served
    for n_prefill_slots in (0, 2):
        for waited_ns, is_read in ((0, False), (2 * S, True)):
            prompt = reading(1, n_prompt=3000, t_queued_ns=NOW - waited_ns)
            plan = run(state_of(talking(0), prompt, config=tiny, n_prefill_slots=n_prefill_slots))
            assert (prefill_item(plan) is not None) is is_read


def test_rows_that_fit_the_budget_stay_within_it():
    views = [talking(i, BACK, n_past=2000) for i in range(6)]
    budget = WEIGHTS + 4.5 * 2001 * CELL
    plan = run(state_of(*views, config=SchedulerConfig(bmt_budget=gbs(budget))))
    assert len(plan.items) == 4
    assert plan.bmt_bytes <= budget


def test_auto_means_the_bandwidth_of_a_measured_step():
    plan = run(state_of(talking(0), config=SchedulerConfig(bmt_budget=-1.0)))
    expected = WEIGHTS / CPU.solo_step_ns(0) * SchedulerConfig().tick_budget_ns
    assert plan.bmt_budget == pytest.approx(expected, rel=0.01)


def test_without_resumable_prefill_whole_prompt_calls_are_dropped():
    views = (talking(0), reading(1, BACK, n_prompt=10), reading(2, BACK, n_prompt=10))
    plan = run(state_of(*views, n_prefill_slots=0, config=SchedulerConfig(bmt_budget=gbs(2.5 * WEIGHTS))))
    assert sids(plan, Phase.PREFILL) == [1]


def test_what_is_mixed_in_reads_no_weights_of_its_own():
    views = (talking(0), reading(5, BACK, n_prompt=3000))
    stages = (*STAGES[:-1], "latency_guard", "bmt_guard")
    plan = compose(stages)(state_of(*views, cost=MIXING, mixed_rows=MIX_ROWS, can_mix_rows=True))
    assert prefill_item(plan).call == plan.items[0].call
    assert plan.bmt_bytes == WEIGHTS + (111 + prefill_item(plan).n_tokens) * CELL


def test_a_mixed_prompt_that_waits_takes_no_time():
    stages = (*STAGES[:-1], "latency_guard", "bmt_guard")
    state = state_of(talking(0), reading(5, BACK, n_prompt=3000), cost=MIXING, mixed_rows=MIX_ROWS, can_mix_rows=True)
    plan = compose(stages)(state._replace(config=SchedulerConfig(bmt_budget=gbs(0.5 * WEIGHTS))))
    assert prefill_item(plan) is None and plan.run_ns == 0


def test_an_interactive_prompt_that_cannot_pause_does_not_wait_for_background_streams():
    views = (talking(0, BACK), talking(2, BACK), reading(4, n_prompt=10), reading(5, BACK, n_prompt=10))
    plan = run(state_of(*views, n_prefill_slots=0, config=SchedulerConfig(bmt_budget=gbs(1.5 * WEIGHTS))))
    assert sids(plan, Phase.PREFILL) == [4] and not sids(plan, Phase.DECODE)


def test_background_streams_stay_where_their_end_would_not_make_room_for_the_prompt():
    views = (talking(0), talking(2, BACK), reading(4, n_prompt=10))
    plan = run(state_of(*views, n_prefill_slots=0, config=SchedulerConfig(bmt_budget=gbs(1.5 * WEIGHTS))))
    assert sids(plan, Phase.DECODE) == [0, 2] and not sids(plan, Phase.PREFILL)


def test_a_step_that_takes_longer_than_a_tick_shall_has_the_bytes_of_a_step():
    slow = cost_of(replace(CPU_SHAPE, decode=tuple((n, 20 * ns) for n, ns in CPU_SHAPE.decode)))
    config = SchedulerConfig(bmt_budget=-1.0)
    assert slow.solo_step_ns(110) > config.tick_budget_ns + 100 * MS
    plan = run(state_of(talking(0, BACK), talking(2, n_past=1000), cost=slow, config=config))
    assert plan.bmt_budget >= WEIGHTS and 2 in sids(plan, Phase.DECODE)
