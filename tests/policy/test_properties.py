"""Properties of every state: a sound plan, kept budgets, replay."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.build import CPU, DEVICE, GPU, MIX_ROWS, MIXING, MS, NOW, S, guarded, report, state_of, waiting
from uma_core.policy.config import DEFAULT_STAGES, SchedulerConfig
from uma_core.policy.cost.calibrate import guess
from uma_core.policy.deadlines import begin_together, urgent_limit_ns
from uma_core.policy.index import indexed, rows_time
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import Plan, PrefillMode, check_plan
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.policy.tbt.limits import tbt_limits
from uma_core.trace.lines import Lines, Tick
from uma_core.trace.replay import differences
from uma_core.types import Phase, Priority

pytestmark = pytest.mark.fuzz

N_STATES = 1000 if os.environ.get("UMA_FUZZ") == "full" else 100
ADAPTERS = ((), (), (("tone", 1.0),), (("tone", 0.5), ("topic", 1.0)))
SLACK_NS = MS // 5  # the smallest slice of a transfer in progress


@st.composite
def views(draw, sid: int, seq_id: int, n_ubatch: int) -> SessionView:
    phase = draw(st.sampled_from([Phase.QUEUED, Phase.PARKED] if seq_id < 0 else [Phase.PREFILL, Phase.DECODE]))
    n_prompt, n_max = draw(st.integers(1, 3000)), draw(st.integers(1, 500))
    part = draw(st.integers(0, n_prompt - 1))
    n_past = {Phase.QUEUED: 0, Phase.PARKED: part, Phase.PREFILL: part, Phase.DECODE: n_prompt + 5}[phase]
    is_moving = draw(st.booleans()) and draw(st.booleans()) and phase in (Phase.PREFILL, Phase.DECODE)
    n_left = n_prompt - n_past
    n_chunk = (
        draw(st.integers(0, min(n_left, n_ubatch)))
        if phase is Phase.PREFILL and not is_moving and draw(st.booleans())
        else 0
    )
    ages = [draw(st.sampled_from([0, MS, 100 * MS, 2 * S, 20 * S])) for _ in range(3)]
    return waiting(
        sid, draw(st.sampled_from(Priority)), seq_id=seq_id, phase=phase, n_prompt=n_prompt, n_past=n_past, n_max=n_max,
        client=draw(st.integers(0, 3)), n_generated=5 if phase is Phase.DECODE else 0,
        n_cells=n_prompt + n_max if seq_id >= 0 else 0,
        n_chunk=n_chunk, chunk_fraction=draw(st.floats(0, 0.99)) if n_chunk else 0.0,
        is_transferring=is_moving, is_ready=not is_moving and draw(st.integers(0, 9)) > 0,
        t_queued_ns=NOW - max(ages), t_progress_ns=NOW - ages[0],
        t_last_ns=NOW - ages[1] if phase is Phase.DECODE else 0,
        t_first_ns=NOW - max(ages[1], ages[2]) if phase is Phase.DECODE else 0,
        slo_ttft_ns=draw(st.sampled_from([0, 0, 50 * MS, S])),
        slo_tbt_ns=draw(st.sampled_from([0, 0, 10 * MS, 80 * MS])),
        cached_hint=draw(st.sampled_from([0, 0, n_prompt // 2])), restore_ns=draw(st.sampled_from([0, MS])),
        adapters=draw(st.sampled_from(ADAPTERS)),
    )  # fmt: skip


@st.composite
def states(draw) -> SchedulerState:
    n_seq_max = draw(st.integers(1, 12))
    n_ubatch = draw(st.sampled_from([64, 512]))
    seqs = draw(st.permutations(range(n_seq_max)))
    n_resident = draw(st.integers(0, n_seq_max))
    sessions = [draw(views(i, seqs[i], n_ubatch)) for i in range(n_resident)]
    sessions += [draw(views(100 + i, -1, n_ubatch)) for i in range(draw(st.integers(0, 6)))]
    n_slots = draw(st.integers(0, 3))
    if not n_slots:
        sessions = [v._replace(n_chunk=0, chunk_fraction=0.0) for v in sessions]
    is_mixing = draw(st.booleans())
    knobs = SchedulerConfig(
        stages=draw(st.sampled_from([DEFAULT_STAGES, DEFAULT_STAGES,
        tuple(s for s in DEFAULT_STAGES if s != "latency_guard")])),
        guard_floor_ns=draw(st.sampled_from([0, 30 * MS])), bmt_budget=draw(st.sampled_from([0.0, -1.0, 8.0])),
        max_background_decoders=draw(st.sampled_from([0, 1])),
    )  # fmt: skip
    credit, debt = draw(st.sampled_from([0.0, 0.5, 1.0])), draw(st.sampled_from([-MS, 0, MS]))
    memory = guarded(credit=credit, error=draw(st.floats(0.0, 0.25)), debt_ns=debt)
    return state_of(
        *sessions, cost=MIXING if is_mixing else draw(st.sampled_from([CPU, GPU, guess(DEVICE)])),
        mixed_rows=MIX_ROWS if is_mixing else (), config=knobs,
        free_seqs=tuple(sorted(seqs[n_resident:])),
        n_seq_max=n_seq_max, n_ubatch=n_ubatch, n_batch=draw(st.sampled_from([16, 2048])), n_prefill_slots=n_slots,
        is_unified=draw(st.booleans()), can_mix_rows=draw(st.booleans()), one_set_per_call=draw(st.booleans()),
        n_cells_free=draw(st.sampled_from([0, 700, 32768])),
        n_expert=draw(st.sampled_from([0, 8])), n_expert_used=2, expert_bytes=300_000_000,
        memory=memory, reports=(report(Phase.DECODE, 2, 30 * MS, 31 * MS),),
    )  # fmt: skip


def planned(state: SchedulerState) -> Plan:
    return compose(state.config.stages)(state)


@given(states())
@settings(max_examples=2 * N_STATES, deadline=None)
def test_every_plan_keeps_what_it_must(state):
    """All in one test: to draw a state takes ten times as long as to check its plan."""
    plan = planned(state)
    assert check_plan(state, plan) == []
    check_ready_interactive_streams_are_served(state, plan)
    check_the_predicted_gap(state, plan)
    check_what_mixed_rows_cost(state, plan)
    check_the_recorded_state_gives_the_plan_again(state, plan)
    check_something_is_done_whenever_something_can_be(state, plan)


@given(states(), st.sets(st.sampled_from(DEFAULT_STAGES)))
@settings(max_examples=N_STATES, deadline=None)
def test_every_subset_of_stages_gives_a_sound_plan(state, names):
    state = state._replace(config=SchedulerConfig(stages=tuple(n for n in DEFAULT_STAGES if n in names)))
    assert check_plan(state, planned(state)) == []


def check_ready_interactive_streams_are_served(state: SchedulerState, plan: Plan) -> None:
    """In every tick."""
    served = {i.sid for i in plan.items if i.phase is Phase.DECODE}
    assert {v.sid for v in begin_together(indexed(state)).index_.interactive} <= served


def check_the_predicted_gap(state: SchedulerState, plan: Plan) -> None:
    """It stays within its limit."""
    index = begin_together(indexed(state)).index_
    if not index.round_ns or "latency_guard" not in state.config.stages:
        return
    kind, limits = plan.guard.kind, tbt_limits(state, index)
    total = index.round_ns + _beside(state, plan) + plan.run_ns + plan.transfer_ns
    if kind in ("nothing", "normal") and index.interactive:
        assert total <= max(limits.everyday_ns, limits.round_ns) + SLACK_NS
    elif kind in ("nothing", "normal", "long"):  # a chat whose KV is being copied waits for that copy only
        assert total <= limits.long_ns + SLACK_NS
    elif kind == "urgent":
        assert total <= urgent_limit_ns(state, limits) + SLACK_NS
    else:
        assert (
            plan.min_pieces == 1 or len([i for i in plan.items if i.sid not in {v.sid for v in index.interactive}]) == 1
        )


def check_what_mixed_rows_cost(state: SchedulerState, plan: Plan) -> None:
    """What is mixed in is planned with what it costs."""
    mixed = [item for item in plan.items if item.mode is PrefillMode.MIXED]
    for item in mixed:
        view = next(v for v in state.sessions if v.sid == item.sid)
        n_streams = sum(i.call == item.call for i in plan.items) - 1
        assert plan.run_ns == state.cost.mixed_ns(n_streams, item.n_tokens, view.n_past)
        assert n_streams + item.n_tokens <= max(MIX_ROWS) and not view.n_chunk
    assert len(mixed) <= 1


def _beside(state: SchedulerState, plan: Plan) -> int:
    """Return the predicted time of calls that hold more than the streams themselves."""
    index = begin_together(indexed(state)).index_
    planned_sids = {i.sid for i in plan.items if i.phase is Phase.DECODE}
    workers = [v for v in index.background if v.sid in planned_sids]
    chunks = [i for i in plan.items if i.mode is PrefillMode.OWN_CALL]
    by_sid = {v.sid: v for v in state.sessions}
    extra = sum(state.cost.prefill_ns(i.n_tokens, by_sid[i.sid].n_past) for i in chunks)
    if workers:
        both = rows_time(state, index.interactive + workers) - rows_time(state, index.interactive)
        extra += min(both, rows_time(state, workers)) if index.interactive else rows_time(state, workers)
    return extra


def check_the_recorded_state_gives_the_plan_again(state: SchedulerState, plan: Plan) -> None:
    assert list(differences(Lines().of(Tick(state, plan, ())))) == []


def check_something_is_done_whenever_something_can_be(state: SchedulerState, plan: Plan) -> None:
    """A state with ready work never gets an empty plan, unless a chat is protected from that work or the work's prefill
    slots are busy.
    """
    index = begin_together(indexed(state)).index_
    if index.interactive or index.arriving or not (index.background or index.prompts):
        return
    slots_busy = state.device.n_prefill_slots and len(index.slots) >= state.device.n_prefill_slots - 1
    assert plan.items or plan.restore or plan.park or (slots_busy and not index.background)
