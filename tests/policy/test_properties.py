"""What holds for every state: a sound plan, kept budgets, replay."""

from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.build import CPU, DEVICE, GPU, MS, NOW, RIDE_ROWS, RIDING, S, report, state_of, waiting
from uma_core import trace
from uma_core.policy.calibrate import guess
from uma_core.policy.gaps import OVERDUE_CAP, gap_limits
from uma_core.policy.guard_memory import GuardMemory, Kind
from uma_core.policy.knobs import DEFAULT_STAGES, Knobs
from uma_core.policy.parts import parts_of, rows_time
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import Plan, check_plan, riders
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Lane, Phase

ADAPTERS = ((), (), (("tone", 1.0),), (("tone", 0.5), ("topic", 1.0)))
SLACK_NS = MS // 5  # the least slice of a transfer that is under way


@st.composite
def views(draw, sid: int, seq_id: int, n_ubatch: int) -> SessionView:
    phase = draw(st.sampled_from([Phase.QUEUED, Phase.PARKED] if seq_id < 0 else [Phase.PREFILL, Phase.DECODE]))
    n_prompt, n_max = draw(st.integers(1, 3000)), draw(st.integers(1, 500))
    part = draw(st.integers(0, n_prompt - 1))
    n_past = {Phase.QUEUED: 0, Phase.PARKED: part, Phase.PREFILL: part, Phase.DECODE: n_prompt + 5}[phase]
    is_moving = draw(st.booleans()) and draw(st.booleans()) and phase in (Phase.PREFILL, Phase.DECODE)
    n_left = n_prompt - n_past
    n_chunk = draw(st.integers(0, min(n_left, n_ubatch))) if phase is Phase.PREFILL and not is_moving and draw(st.booleans()) else 0
    ages = [draw(st.sampled_from([0, MS, 100 * MS, 2 * S, 20 * S])) for _ in range(3)]
    return waiting(
        sid, draw(st.sampled_from(Lane)), seq_id=seq_id, phase=phase, n_prompt=n_prompt, n_past=n_past, n_max=n_max,
        client=draw(st.integers(0, 3)), n_generated=5 if phase is Phase.DECODE else 0, n_cells=n_prompt + n_max if seq_id >= 0 else 0,
        n_chunk=n_chunk, chunk_fraction=draw(st.floats(0, 0.99)) if n_chunk else 0.0,
        is_transferring=is_moving, is_ready=not is_moving and draw(st.integers(0, 9)) > 0,
        t_queued_ns=NOW - max(ages), t_progress_ns=NOW - ages[0], t_last_ns=NOW - ages[1] if phase is Phase.DECODE else 0,
        t_first_ns=NOW - max(ages[1], ages[2]) if phase is Phase.DECODE else 0,
        slo_ttft_ns=draw(st.sampled_from([0, 0, 50 * MS, S])), slo_tbt_ns=draw(st.sampled_from([0, 0, 10 * MS, 80 * MS])),
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
    lanes = draw(st.integers(0, 3))
    if not lanes:
        sessions = [v._replace(n_chunk=0, chunk_fraction=0.0) for v in sessions]
    rides = draw(st.booleans())
    knobs = Knobs(
        stages=draw(st.sampled_from([DEFAULT_STAGES, DEFAULT_STAGES, tuple(s for s in DEFAULT_STAGES if s != "latency_guard")])),
        guard_floor_ns=draw(st.sampled_from([0, 30 * MS])), bmt_budget=draw(st.sampled_from([0.0, -1.0, 8.0])),
        max_background_decoders=draw(st.sampled_from([0, 1])),
    )  # fmt: skip
    credit, debt = draw(st.sampled_from([-1.0, 0.5, 1.0])), draw(st.sampled_from([-MS, 0, MS]))
    memory = GuardMemory(credit=credit, margin=draw(st.floats(0.01, 0.2)), debt_ns=debt)
    return state_of(
        *sessions, cost=RIDING if rides else draw(st.sampled_from([CPU, GPU, guess(DEVICE)])), ride_rows=RIDE_ROWS if rides else (), knobs=knobs,
        free_seqs=tuple(sorted(seqs[n_resident:])),
        n_seq_max=n_seq_max, n_ubatch=n_ubatch, n_batch=draw(st.sampled_from([16, 2048])), n_prefill_lanes=lanes,
        is_unified=draw(st.booleans()), can_mix_rows=draw(st.booleans()), one_set_per_call=draw(st.booleans()),
        n_cells_free=draw(st.sampled_from([0, 700, 32768])),
        n_expert=draw(st.sampled_from([0, 8])), n_expert_used=2, expert_bytes=300_000_000,
        carry={"latency_guard": memory}, reports=(report(Phase.DECODE, 2, 30 * MS, 31 * MS),),
    )  # fmt: skip


def planned(state: SchedulerState) -> Plan:
    return compose(state.knobs.stages)(state)


@given(states())
@settings(max_examples=200, deadline=None)
def test_every_plan_is_sound(state):
    assert check_plan(state, planned(state)) == []


@given(states(), st.sets(st.sampled_from(DEFAULT_STAGES)))
@settings(max_examples=200, deadline=None)
def test_every_subset_of_stages_gives_a_sound_plan(state, names):
    state = state._replace(knobs=Knobs(stages=tuple(n for n in DEFAULT_STAGES if n in names)))
    assert check_plan(state, planned(state)) == []


@given(states())
@settings(max_examples=200, deadline=None)
def test_every_ready_interactive_stream_is_served_every_tick(state):
    served = {i.sid for i in planned(state).items if i.phase is Phase.DECODE}
    assert {v.sid for v in parts_of(state).talkers} <= served


@given(states())
@settings(max_examples=200, deadline=None)
def test_the_predicted_gap_stays_within_its_limit(state):
    parts = parts_of(state)
    if not parts.talk_ns or "latency_guard" not in state.knobs.stages:
        return
    plan = planned(state)
    kind = Kind(plan.carry["latency_guard"].last_kind)
    limits = gap_limits(state, parts)
    total = parts.talk_ns + _beside(state, plan) + plan.run_ns + plan.transfer_ns
    if kind <= Kind.NORMAL and parts.talkers:
        lanes = {v.sid: v.lane for v in state.sessions}
        has_chat = any(i.phase is Phase.PREFILL and lanes[i.sid] is Lane.INTERACTIVE for i in plan.items)
        noise = plan.carry["latency_guard"].noise if has_chat else 0.0  # a chat's prompt may fill a gap up to the noise
        assert total <= max(limits.cap_ns * (1 + noise), limits.solo_ns) + SLACK_NS
    elif kind <= Kind.LONG:  # a chat whose KV is on its way waits for that copy and nothing else
        assert total <= limits.pause_ns + SLACK_NS
    elif kind is Kind.URGENT:
        assert total <= max(limits.pause_ns, OVERDUE_CAP * limits.solo_ns) + SLACK_NS
    else:
        assert plan.min_pieces == 1 or len([i for i in plan.items if i.sid not in {v.sid for v in parts.talkers}]) == 1


@given(states())
@settings(max_examples=200, deadline=None)
def test_what_rides_is_planned_with_what_it_costs(state):
    plan = planned(state)
    riding = riders(plan)
    for item in plan.items:
        if item.sid in riding:
            view = next(v for v in state.sessions if v.sid == item.sid)
            n_streams = sum(i.call == item.call for i in plan.items) - 1
            assert plan.run_ns == state.cost.ride_ns(n_streams, item.n_tokens, view.n_past)
            assert n_streams + item.n_tokens <= max(RIDE_ROWS) and not view.n_chunk
    assert len(riding) <= 1


def _beside(state: SchedulerState, plan: Plan) -> int:
    """Predicted time of calls that hold more than the streams themselves."""
    parts = parts_of(state)
    planned_sids = {i.sid for i in plan.items if i.phase is Phase.DECODE}
    workers = [v for v in parts.workers if v.sid in planned_sids]
    chunks = [i for i in plan.items if i.phase is Phase.PREFILL and i.call >= 0 and i.sid not in riders(plan)]
    by_sid = {v.sid: v for v in state.sessions}
    extra = sum(state.cost.prefill_ns(i.n_tokens, by_sid[i.sid].n_past) for i in chunks)
    if workers:
        both = rows_time(state, parts.talkers + workers) - rows_time(state, parts.talkers)
        extra += min(both, rows_time(state, workers)) if parts.talkers else rows_time(state, workers)
    return extra


@given(states())
@settings(max_examples=200, deadline=None)
def test_a_recorded_state_gives_the_same_plan_again(state):
    plan = planned(state)
    out = io.StringIO()
    trace.write([trace.Tick(state, plan, ())], out)
    assert list(trace.differences(out.getvalue().splitlines())) == []


@given(states())
@settings(max_examples=200, deadline=None)
def test_something_is_done_whenever_something_can_be(state):
    """No state with ready work is answered by an empty plan, unless a chat is protected from that work or its lanes are busy."""
    parts = parts_of(state)
    if parts.talkers or parts.arriving or not (parts.workers or parts.prompts):
        return
    plan = planned(state)
    lanes_busy = state.device.n_prefill_lanes and parts.n_lanes_used >= state.device.n_prefill_lanes - 1
    assert plan.items or plan.restore or plan.park or (lanes_busy and not parts.workers)
