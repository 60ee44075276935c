"""Prefill order: which prompt is read next.

Rules: policy/order.py orders prompts (priority, fairness, least remaining work, aging). A paused chunk continues unless
a more urgent prompt can begin one in another prefill slot. Background prompts never take the last slot, so that a new
chat can start at the next piece: with two slots, a second background chunk waits for the end of the first one. While a
chat streams, a prompt without progress for `starvation_ticks` decode rounds goes first. A prompt whose piece exceeds a
long gap goes first only when it is forced; until then it would only keep other prompts waiting.
Without resumable prefill all prompts are listed in order, each as a call of its own.
"""

from __future__ import annotations

from uma_core.policy.index import SessionIndex, index_of
from uma_core.policy.order import Key, is_starved, starved_first, urgency_key, why_first
from uma_core.policy.plan import Plan, PlanItem, PrefillMode
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.policy.tbt.limits import tbt_limits
from uma_core.types import Phase, Priority


def run(state: SchedulerState, plan: Plan) -> Plan:
    index, n_slots = index_of(state), state.device.n_prefill_slots
    every = _prompts(index, plan)
    prompts = [v for v in every if v.n_chunk or _may_open(state, index, v)] if n_slots else every
    if not prompts:
        return plan.note(f"prefill_order: {_no_slot(state, index)}") if every else plan
    key = urgency_key(state, plan.charged)
    ordered = starved_first(state, sorted(prompts, key=key), _is_forced)
    if n_slots:
        items = [_item(state, plan, ordered[0], PrefillMode.SLICED, -1)]
        n_others = len(every) - 1
        if n_others:
            other = next(v.sid for v in every if v is not ordered[0])
            others = f"prompt {other} waits" if n_others == 1 else f"{n_others} others wait"
            why = _why_first(state, ordered, key)
            plan = plan.note(f"prefill_order: prompt {ordered[0].sid} goes first, {others}: {why}")
    else:
        first = 1 + max((i.call for i in plan.items), default=-1)
        items = [_item(state, plan, v, PrefillMode.OWN_CALL, call) for call, v in enumerate(ordered, first)]
    if _is_forced(state, ordered[0]):
        items[0] = items[0]._replace(reason="starved")
    return plan._replace(items=(*plan.items, *items))


def _is_forced(state: SchedulerState, view: SessionView) -> bool:
    """Whether the prompt goes first because it has waited long enough for a piece of it to be forced."""
    if not is_starved(state, view):
        return False
    if "latency_guard" not in state.config.stages:
        return True
    n, cost = view.n_chunk or min(state.cost.chunks[0], view.n_left), state.cost
    need = cost.piece_ns(n, view.n_past) if state.device.n_prefill_slots else cost.prefill_ns(n, view.n_past)
    return is_starved(state, view, tbt_limits(state, index_of(state)).starvation_factor(need))


def _why_first(state: SchedulerState, ordered: list[SessionView], key: Key) -> str:
    if _is_forced(state, ordered[0]):
        return f"without progress for {(state.now_ns - ordered[0].t_progress_ns) / 1e6:.0f} ms"
    if len(ordered) == 1:
        return _no_slot(state, index_of(state))
    return f"before {ordered[1].sid}{why_first(key(ordered[0]), key(ordered[1]))}"


def _prompts(index: SessionIndex, plan: Plan) -> list[SessionView]:
    """Sessions whose prompt can be read in this tick: those in PREFILL, and those that the plan admits.

    A session that is parked or restored (its cached beginning, or all of it after parking) is left for the next tick.
    """
    admitted, away = {a.sid for a in plan.admit}, {*plan.restore, *plan.park}
    fresh = [v for v in index.waiting if v.sid in admitted and v.phase is Phase.QUEUED and v.n_left] if admitted else []
    return [v for v in index.prompts + fresh if v.sid not in away]


def _item(state: SchedulerState, plan: Plan, view: SessionView, mode: PrefillMode, call: int) -> PlanItem:
    n = view.n_chunk or min(view.n_left, state.device.n_ubatch, state.device.n_batch)
    reason = "resume" if view.n_chunk else "open"
    seq_id = view.seq_id if view.seq_id >= 0 else next(a.seq_id for a in plan.admit if a.sid == view.sid)
    return PlanItem(view.sid, seq_id, Phase.PREFILL, n, n == view.n_left, call, reason, mode)


def _may_open(state: SchedulerState, index: SessionIndex, view: SessionView) -> bool:
    n_slots = state.device.n_prefill_slots
    if len(index.slots) >= n_slots:
        return False
    n_background = sum(v.priority is Priority.BACKGROUND for v in index.slots)
    return view.priority is Priority.INTERACTIVE or n_background < max(1, n_slots - 1)


def _no_slot(state: SchedulerState, index: SessionIndex) -> str:
    """Why the prompts that have no chunk in progress cannot begin one."""
    if len(index.slots) < state.device.n_prefill_slots:
        return "the last prefill slot is kept for chats"
    return "every prefill slot is taken"
