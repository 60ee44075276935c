"""Prefill order: which prompt is read next.

Rules: policy/rank.py orders prompts (lane, fairness, least remaining work, aging). A paused chunk goes on unless
a more urgent prompt can open one in another lane. Background prompts never take the last lane, so that a new
chat can start at the next piece; a second background chunk waits for the first one's end where there are two
lanes. While a chat streams, a prompt that saw no progress for `starvation_ticks` decode rounds goes first.
Without resumable prefill all prompts are listed in order, each as a call of its own.
"""

from __future__ import annotations

from uma_core.policy.parts import Parts, parts_of, prompts_of, seq_of
from uma_core.policy.plan import SLICED, Plan, PlanItem
from uma_core.policy.rank import urgency_key
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Lane, Phase


def run(state: SchedulerState, plan: Plan) -> Plan:
    prompts = prompts_of(state, plan)
    if not prompts:
        return plan
    if not state.device.n_prefill_lanes:
        return plan._replace(items=plan.items + _in_calls(state, plan, prompts))
    parts = parts_of(state)
    able = [v for v in prompts if v.n_chunk or _may_open(state, parts, v)]
    if not able:
        return plan._replace(notes=(*plan.notes, "prefill_order: every lane is taken"))
    starved = [v for v in able if is_starved(state, v)]
    if starved:
        head, reason = min(starved, key=lambda v: (v.t_progress_ns, v.sid)), "starved"
    else:
        head = min(able, key=urgency_key(state)) if len(able) > 1 else able[0]
        reason = "resume" if head.n_chunk else "open"
    n_tokens = head.n_chunk or min(head.n_left, state.device.n_ubatch)
    item = PlanItem(head.sid, seq_of(plan, head), Phase.PREFILL, n_tokens, n_tokens == head.n_left, SLICED, reason)
    return plan._replace(items=(*plan.items, item))


def is_starved(state: SchedulerState, view: SessionView, times: int = 1) -> bool:
    """True if a stream is decoding and the prompt saw no progress for `starvation_ticks` x `times` rounds of it."""
    talk_ns = parts_of(state).talk_ns
    return talk_ns > 0 and state.now_ns - view.t_progress_ns >= state.knobs.starvation_ticks * times * talk_ns


def _may_open(state: SchedulerState, parts: Parts, view: SessionView) -> bool:
    n_lanes = state.device.n_prefill_lanes
    if parts.n_lanes_used >= n_lanes:
        return False
    return view.lane is Lane.INTERACTIVE or parts.n_lanes_background < max(1, n_lanes - 1)


def _in_calls(state: SchedulerState, plan: Plan, prompts: list[SessionView]) -> tuple[PlanItem, ...]:
    """Every prompt in order, in calls after the decode calls; the budget stage sizes and drops them."""
    first = 1 + max((i.call for i in plan.items), default=-1)
    ordered = sorted(prompts, key=urgency_key(state))
    starved = [v for v in ordered if is_starved(state, v)]
    if starved:
        oldest = min(starved, key=lambda v: (v.t_progress_ns, v.sid))
        ordered = [oldest] + [v for v in ordered if v is not oldest]
    items = []
    for call, v in enumerate(ordered, first):
        n = min(v.n_left, state.device.n_ubatch, state.device.n_batch)
        reason = "starved" if starved and v is ordered[0] else "chunk"
        items.append(PlanItem(v.sid, seq_of(plan, v), Phase.PREFILL, n, n == v.n_left, call, reason))
    return tuple(items)
