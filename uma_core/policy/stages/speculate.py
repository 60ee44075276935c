"""Speculate: draft tokens become further rows of a decode call, where they are expected to win more than they cost.

Rules: a row is worth its time while it brings tokens faster than the call without it does: with T tokens expected of a
call of C ns, a draft of survival probability s has to cost less than s * C / T. Rows go to the likeliest drafts of all
streams. With interactive streams the tick stays within their everyday limit. A call with tokens of a prompt verifies nothing.
"""

from __future__ import annotations

import heapq

from uma_core.policy.index import rows_time
from uma_core.policy.plan import Plan, PlanItem
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Phase


def run(state: SchedulerState, plan: Plan) -> Plan:
    drafting = {v.sid: v for v in state.sessions if v.survival}
    if not drafting or not state.device.n_verify_rows:
        return plan
    n_drafts = dict.fromkeys((i.sid for i in plan.items), 0)
    room_ns, draft_ns = _room(state, plan), 0
    for call in sorted({i.call for i in plan.items if i.sid in drafting and i.phase is Phase.DECODE}):
        items = [i for i in plan.items if i.call == call]
        if all(i.phase is Phase.DECODE for i in items) and (state.device.can_mix_rows or len(items) == 1):
            draft_ns += _allot(state, items, drafting, room_ns - draft_ns, n_drafts)
    if not any(n_drafts.values()):
        return plan
    planned = tuple([i._replace(n_tokens=1 + n_drafts[i.sid]) if n_drafts[i.sid] else i for i in plan.items])
    note = f"speculate: {sum(n_drafts.values())} draft tokens of {sum(map(bool, n_drafts.values()))} streams"
    return plan._replace(items=planned, notes=(*plan.notes, note), draft_ns=draft_ns)


def _room(state: SchedulerState, plan: Plan) -> int:
    """Time for drafts in this tick, with the machine's usual error on top."""
    guard = plan.guard
    if guard is None:
        return 1 << 62
    planned = {i.sid for i in plan.items if i.phase is Phase.DECODE}
    views = [v for v in state.sessions if v.sid in planned]
    return int(guard.cap_ns / (1.0 + guard.error)) - rows_time(state, views) - plan.run_ns - plan.transfer_ns


def _allot(
    state: SchedulerState,
    items: list[PlanItem],
    drafting: dict[int, SessionView],
    room_ns: int,
    n_drafts: dict[int, int],
) -> int:
    """Give drafts of one call rows, the likeliest first, in `n_drafts`. The time that they take."""
    sids = {i.sid for i in items}
    views = {v.sid: v for v in state.sessions if v.sid in sids}
    n, n_kv = len(items), sum(v.n_past for v in views.values())
    alone_ns = call_ns = state.cost.decode_ns(n, n_kv)
    expected = float(n)
    best = [(-drafting[i.sid].survival[0], i.sid) for i in items if i.sid in drafting]
    heapq.heapify(best)
    while best and n < state.device.n_verify_rows:
        survival, sid = -best[0][0], best[0][1]
        n_kv += views[sid].n_past
        next_ns = max(call_ns, state.cost.decode_ns(n + 1, n_kv))
        if next_ns - alone_ns > room_ns or survival * call_ns <= expected * (next_ns - call_ns):
            break
        n, call_ns, expected = n + 1, next_ns, expected + survival
        n_drafts[sid] += 1
        following = drafting[sid].survival[n_drafts[sid] :]
        if following:
            heapq.heapreplace(best, (-following[0], sid))
        else:
            heapq.heappop(best)
    return call_ns - alone_ns
