"""A plan is repeated only while every skipped plan would have been the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.policy.build import CPU, NOW, S, guarded, reading, sids, state_of, talking, waiting
from uma_core.policy.config import DEFAULT_STAGES, SchedulerConfig
from uma_core.policy.index import rows_time
from uma_core.policy.pipeline import compose
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
SOLO = CPU.solo_step_ns(110)
POLICY = compose(DEFAULT_STAGES)
COARSE = {"n_prompt": 3000, "n_chunk": 128, "chunk_fraction": 0.3}  # its pieces fit only long gaps
ROOMY = SchedulerConfig(pause_cap=2.5)  # another row takes a step: it fits a long gap but no everyday gap


def watched(**fields):
    return guarded(tick=999, **fields)


def after(state, plan, n):
    """Return the state `n` rounds of the chat later, if nothing else has happened."""
    chat, *others = state.sessions
    t_last = state.now_ns + (n - 1) * SOLO
    chat = chat._replace(t_last_ns=t_last, t_progress_ns=t_last, n_generated=chat.n_generated + n)
    return state._replace(
        tick=state.tick + n, now_ns=state.now_ns + n * SOLO, sessions=(chat, *others), memory=plan.memory
    )


def first_round_with_background(state):
    """Return the first round whose plan has a background row, if every round is planned."""
    plan = POLICY(state)
    for n in range(1, 1000):
        state = after(state, plan, 1)
        plan = POLICY(state)
        if len(sids(plan, Phase.DECODE)) > 1:
            return n
    raise AssertionError("the background stream starves")


def test_chats_alone_repeat_their_plan_for_a_while():
    state = state_of(talking(0), talking(1))
    seconds = POLICY(state).n_repeats * rows_time(state, list(state.sessions)) / S
    assert 0.4 < seconds <= 0.5, "the clients' accounts and the limits are as old as the plan"


@pytest.mark.parametrize(
    "other",
    [
        waiting(1),
        reading(1),  # its deadline may grant it a long gap at any time
        talking(1, is_ready=False, is_transferring=True),
        talking(1, BACK, is_ready=False, is_transferring=True),
    ],
)
def test_whoever_may_get_something_next_has_every_plan_made(other):
    assert POLICY(state_of(talking(0), other, n_prefill_slots=0, n_cells_free=0)).n_repeats == 0


def test_a_plan_that_serves_the_background_is_made_anew():
    plan = POLICY(state_of(talking(0), talking(1, BACK), config=ROOMY, memory=watched(credit=1.0)))
    assert len(plan.items) == 2 and plan.n_repeats == 0


@pytest.mark.parametrize("n_long", [0.95, 0.9, 0.8, 0.75])
def test_a_held_stream_is_planned_for_when_a_long_gap_may_be_spent(n_long):
    state = state_of(talking(0), talking(1, BACK), config=ROOMY, memory=watched(credit=n_long))
    n = POLICY(state).n_repeats
    assert 0 < n < 15
    assert n + 1 == first_round_with_background(state)


@pytest.mark.parametrize("rounds_ago", [50, 53, 60])
def test_a_held_stream_is_planned_for_when_it_starves(rounds_ago):
    worker = talking(1, BACK, t_last_ns=NOW - rounds_ago * SOLO)
    knobs = replace(ROOMY, long_tick_share=0.0)
    state = state_of(talking(0), worker, config=knobs, memory=watched(forced_tick=1000 - 64))
    n = POLICY(state).n_repeats
    assert 0 < n < 15
    assert n + 1 == first_round_with_background(state)


def test_a_row_that_exceeds_every_gap_waits_for_its_rarer_turn():
    worker = talking(1, BACK, t_last_ns=NOW - 250 * SOLO)
    state = state_of(
        talking(0), worker, config=SchedulerConfig(pause_cap=1.8), memory=watched(forced_tick=1000 - 250, credit=1.0)
    )
    n = POLICY(state).n_repeats
    assert n == 5 and n + 1 == first_round_with_background(state)


def test_without_the_guard_nobody_is_held_back():
    names = tuple(name for name in DEFAULT_STAGES if name != "latency_guard")
    state = state_of(talking(0), talking(1, BACK), config=SchedulerConfig(stages=names))
    assert compose(names)(state).n_repeats == 0


def test_a_row_that_was_cut_for_its_bytes_is_planned_again():
    """The latency guard let it in, so it may be served as soon as the budget of bytes allows."""
    state = state_of(talking(0), talking(1, BACK), config=replace(ROOMY, bmt_budget=1.0), memory=watched(credit=1.0))
    plan = POLICY(state)
    assert sids(plan, Phase.DECODE) == [0] and plan.n_repeats == 0


def first_round_with_prompt(state):
    """Return the first round whose plan has a part of the prompt, if every round is planned."""
    plan = POLICY(state)
    for n in range(1, 1000):
        state = after(state, plan, 1)
        plan = POLICY(state)
        if sids(plan, Phase.PREFILL):
            return n
    raise AssertionError("the prompt starves")


@pytest.mark.parametrize("n_long", [0.95, 0.9, 0.8, 0.75])
def test_a_held_prompt_is_planned_for_when_a_long_gap_may_be_spent(n_long):
    state = state_of(talking(0), reading(1, BACK, **COARSE), memory=watched(credit=n_long))
    n = POLICY(state).n_repeats
    assert 0 < n < 15
    assert n + 1 == first_round_with_prompt(state)


@pytest.mark.parametrize("rounds_ago", [50, 53, 60])
def test_a_held_prompt_is_planned_for_when_it_starves(rounds_ago):
    prompt = reading(1, BACK, t_progress_ns=NOW - rounds_ago * SOLO, **COARSE)
    knobs = SchedulerConfig(long_tick_share=0.0)
    state = state_of(talking(0), prompt, config=knobs, memory=watched())
    n = POLICY(state).n_repeats
    assert 0 < n < 15
    assert n + 1 == first_round_with_prompt(state)


def test_of_a_held_prompt_and_a_held_stream_whoever_is_due_first_is_planned_for():
    prompt = reading(1, BACK, t_progress_ns=NOW - 60 * SOLO, **COARSE)
    worker = talking(2, BACK, t_last_ns=NOW - 20 * SOLO)
    knobs = SchedulerConfig(long_tick_share=0.0)
    state = state_of(talking(0), prompt, worker, config=knobs, memory=watched(forced_tick=1000 - 64))
    n = POLICY(state).n_repeats
    assert 0 < n < 15 and n + 1 == first_round_with_prompt(state)
