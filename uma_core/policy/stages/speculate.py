"""Speculate: draft tokens become further rows of a decode call, if they are expected to gain more than they cost.

Rules: docs/SPECULATION.md ("How many rows", "The promise"). In short, rows go to the likeliest drafts of all streams,
as many as give the call the most tokens per unit of time (`_rows_of`), within what other work left of an everyday gap
(`_room`). A prompt in a mixed batch may give up half of its rows (`_exchange`).
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from uma_core.policy.deadlines import is_first_awaited
from uma_core.policy.index import index_of, prompt_view, views_of
from uma_core.policy.plan import Plan, PlanItem, PrefillMode
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Phase, Priority

UNLIMITED_NS = 1 << 62
# A draft less likely than this gets no row. In prose that repeats nothing only 7 % of the drafts are accepted, by
# chance. They gained nothing, and raised the 95th percentile of the text's gaps from 1.06 to 1.24 steps (2 cores,
# AVX-512, 0.5B Q8_0).
LEAST_SURVIVAL = 0.25

ORDINARY = ("nothing", "normal")  # kinds of gaps within the everyday limit; gaps of the other kinds are long already


class DraftRoom(NamedTuple):
    """Nanoseconds of a tick that drafts may take."""

    in_everyday_ns: int  # time for drafts, however few tokens they bring
    in_long_ns: int  # time if they bring each stream enough tokens; beside other work the same as `in_everyday_ns`
    limit_ns: int  # limit of a gap that brings each stream one token; with nothing else in it, it applies to each token
    round_ns: int  # part of that limit that the streams' own rows take


def run(state: SchedulerState, plan: Plan) -> Plan:
    if not state.device.n_verify_rows:
        return plan
    room = _room(state, plan)
    plan, left_ns = _verify(state, plan, room)
    return _floor(state, _draft(state, plan, left_ns), room)


def _room(state: SchedulerState, plan: Plan) -> DraftRoom:
    """Time for drafts in this tick: what other work left of an everyday gap's room.

    Even on a noisy machine the latency guard leaves some room, for drafts as for prompts. On a machine whose steps vary
    by a fifth, drafts gave a stream of edits only 1.02 times the tokens a second without that room.
    """
    guard = plan.guard
    if guard is None:
        return DraftRoom(UNLIMITED_NS, UNLIMITED_NS, UNLIMITED_NS, 0)
    if guard.kind not in ORDINARY:
        return DraftRoom(0, 0, 0, 0)
    own_call_ns = guard.need_ns if any(i.mode is PrefillMode.OWN_CALL for i in plan.items) else 0
    rows_ns = sum(state.cost.decode_ns(len(cells), sum(cells)) for cells in _calls(state, plan))
    taken_ns = rows_ns + plan.run_ns - _spare(state, plan) + own_call_ns
    in_everyday_ns = guard.round_ns + guard.room_ns - taken_ns
    has_rows = any(v.priority is Priority.BACKGROUND for v in views_of(state, plan.decodes))
    has_others = plan.run_ns or own_call_ns or plan.transfer_ns or has_rows
    in_long_ns = in_everyday_ns if has_others else max(in_everyday_ns, guard.long_ns - taken_ns)
    return DraftRoom(in_everyday_ns, in_long_ns, guard.everyday_ns, guard.round_ns)


def _calls(state: SchedulerState, plan: Plan) -> list[list[int]]:
    """For each decode call: the KV cells that each of its streams' rows reads."""
    call_of = {i.sid: i.call for i in plan.decodes}
    calls: dict[int, list[int]] = {}
    for view in views_of(state, plan.decodes):
        calls.setdefault(call_of[view.sid], []).append(view.n_past)
    return list(calls.values())


def _spare(state: SchedulerState, plan: Plan) -> int:
    """Time of a prompt's pieces after the first, if the prompt gives it up for drafts."""
    item = next((i for i in plan.items if i.mode is PrefillMode.SLICED), None)
    if item is None or plan.guard is None or _is_awaited(state, item):
        return 0
    return max(0, plan.run_ns - plan.quantum_ns)


def _is_awaited(state: SchedulerState, prompt: PlanItem) -> bool:
    """Whether a client awaits this prompt's first token. Drafts then take nothing from it: when they did, the chats of
    a storm saw their first tokens after 220 ms, not 158 (0.5B Q8_0, 2 cores).
    """
    return is_first_awaited(prompt_view(state, prompt.sid))


# verifying drafts


def _verify(state: SchedulerState, plan: Plan, room: DraftRoom) -> tuple[Plan, int]:
    """Return the plan with rows for drafts, and the room that is left in an everyday gap."""
    room_ns, draft_ns, n_taken = room.in_everyday_ns, 0, 0
    chosen: list[int] = []  # for each draft token that gets a row, its stream's sid
    drafting = {v.sid for v in state.sessions if v.survival}
    is_ordinary = plan.guard is not None and plan.guard.kind in ORDINARY
    for call in sorted({i.call for i in plan.decodes if i.sid in drafting}):
        items = [i for i in plan.items if i.call == call]
        if not (state.device.can_mix_rows or len(items) == 1):
            continue
        prompt = next((i for i in items if i.phase is Phase.PREFILL), None)
        streams = views_of(state, [i for i in items if i is not prompt])
        if prompt is None:
            is_only_call, left_ns = len(items) == len(plan.items), room_ns - draft_ns
            call_room = room if is_only_call else room._replace(in_everyday_ns=left_ns, in_long_ns=left_ns)
            sids, ns = _allot(state, streams, call_room)
            chosen, draft_ns = chosen + sids, draft_ns + ns
        elif is_ordinary and not prompt.want_logits and not _is_awaited(state, prompt):
            sids = _exchange(state, streams, prompt)
            chosen, n_taken = chosen + sids, len(sids)
    if not chosen:
        return plan, room_ns
    n_drafts = Counter(chosen)
    items = [i._replace(n_tokens=1 + n_drafts[i.sid]) if i.sid in n_drafts else i for i in plan.items]
    items = [i._replace(n_tokens=i.n_tokens - n_taken) if i.mode is PrefillMode.MIXED else i for i in items]
    stretch = max(0.0, (room.round_ns + draft_ns) / max(1, room.limit_ns) - 1.0)
    plan = plan._replace(items=tuple(items), stretch=stretch)
    plan = plan.note(f"speculate: {len(chosen)} draft tokens of {len(n_drafts)} streams")
    return _spend(state, plan, draft_ns, room_ns), room_ns - draft_ns


def _spend(state: SchedulerState, plan: Plan, ns: int, room_ns: int) -> Plan:
    """Take `ns` of the room for drafts: first what no other work uses, then time of the prompt's pieces."""
    spare_ns = _spare(state, plan)
    from_prompt_ns = min(spare_ns, max(0, ns - max(0, room_ns - spare_ns)))
    return plan._replace(run_ns=plan.run_ns - from_prompt_ns, draft_ns=plan.draft_ns + ns - from_prompt_ns)


def _allot(state: SchedulerState, streams: list[SessionView], room: DraftRoom) -> tuple[list[int], int]:
    """Choose the drafts of one call that get rows. Return their streams' sids, and the time that the rows take.

    Of two orders, the better one counts: the likeliest drafts first, or one draft of every stream before all others. A
    stream without drafts gets one token, so it limits the gap to the limit of one token.
    """
    orders = (False, True) if len(streams) > 1 else (False,)
    return max(_rows_of(state, streams, _drafts(streams, each_first), room) for each_first in orders)[1:]


def _rows_of(
    state: SchedulerState, streams: list[SessionView], drafts: list[tuple[float, int]], room: DraftRoom
) -> tuple[float, list[int], int]:
    """Find how many of these drafts (survival, sid), taken in order, give the call the most tokens per ns.

    Returns that rate, the sids of the drafts taken, and the time that their rows add. The search goes on past a number
    of rows that exceeds the limit: once every stream has a draft, the gap may be longer.
    """
    views = {v.sid: v for v in streams}
    n, n_kv = len(streams), sum(v.n_past for v in streams)
    alone_ns = call_ns = state.cost.decode_ns(n, n_kv)
    expected = float(n)
    best_rate = expected / alone_ns
    tokens = dict.fromkeys(views, 1.0)  # expected tokens of the call for each stream
    chosen: list[int] = []
    n_kept = kept_ns = 0
    for survival, sid in drafts:
        n_kv += views[sid].n_past
        call_ns = max(call_ns, state.cost.decode_ns(n + 1, n_kv))
        more_ns = call_ns - alone_ns
        if n >= state.device.n_verify_rows or survival < LEAST_SURVIVAL or more_ns > room.in_long_ns:
            break
        n, expected = n + 1, expected + survival
        chosen.append(sid)
        tokens[sid] += survival
        n_brought = min(n_tokens + views[sid].ahead for sid, n_tokens in tokens.items())
        is_within = more_ns <= room.in_everyday_ns or room.round_ns + more_ns <= n_brought * room.limit_ns
        if is_within and expected / call_ns > best_rate:
            n_kept, kept_ns, best_rate = len(chosen), more_ns, expected / call_ns
    return best_rate, chosen[:n_kept], kept_ns


def _exchange(state: SchedulerState, streams: list[SessionView], prompt: PlanItem) -> list[int]:
    """Choose drafts that take over a prompt's rows, one for one, so that the call takes no longer.

    A row brings the prompt one token, or a stream as many as the draft's survival. Each token is worth the time that
    it would take otherwise: a prompt's token in a chunk, a stream's token in a step.
    """
    chosen: list[int] = []
    if len(streams) + prompt.n_tokens > state.device.n_verify_rows:
        return chosen
    n_past = prompt_view(state, prompt.sid).n_past
    step_ns = state.cost.decode_ns(len(streams), sum(v.n_past for v in streams))
    token_ns = state.cost.prefill_ns(state.cost.sweet_chunk, n_past) / state.cost.sweet_chunk
    expected = float(len(streams))
    for survival, sid in _drafts(streams):
        if len(chosen) == prompt.n_tokens // 2 or survival * step_ns <= expected * token_ns:
            break
        expected += survival
        chosen.append(sid)
    return chosen


def _drafts(streams: list[SessionView], is_each_first: bool = False) -> list[tuple[float, int]]:
    """(survival, sid) of every draft token, the likeliest first; or every stream's first one before all others."""
    found = [(is_each_first and k > 0, -p, v.sid) for v in streams for k, p in enumerate(v.survival)]
    return [(-negated, sid) for _, negated, sid in sorted(found)]


# making drafts


def _draft(state: SchedulerState, plan: Plan, room_ns: int) -> Plan:
    """Let the draft model draft for the next step, as many tokens as are expected to gain the most."""
    token_ns = state.device.draft_token_ns
    index = index_of(state)
    if not token_ns:
        return plan
    planned = {i.sid for i in plan.decodes}
    views = [v for v in index.decodes if v.draft_rates and v.sid in planned]
    if not views:
        return plan
    if plan.guard is None:  # a chat that arrives waits for no more than a tick
        room_ns = min(room_ns, state.config.tick_budget_ns)
    n, n_kv = len(planned), sum(v.n_past for v in views_of(state, plan.decodes))
    step_ns = state.cost.decode_ns(n, n_kv)
    wanted, total_ns = [], 0
    for view in views:  # find the number of drafts of this stream that gives the most tokens per ns
        n_best, best, expected = 0, n / step_ns, float(n)
        for k, survival in enumerate(view.draft_rates, 1):
            expected += survival
            verify_ns = max(0, state.cost.decode_ns(n + k, n_kv + k * view.n_past) - step_ns)
            if n + k > state.device.n_verify_rows or total_ns + k * token_ns + verify_ns > room_ns:
                break
            rate = expected / (step_ns + verify_ns + k * token_ns)
            if rate > best:
                n_best, best = k, rate
        if n_best:
            wanted.append((view.sid, n_best))
            total_ns += n_best * token_ns
    if not wanted:
        return plan
    # the rest of the room is for text that the draft model has not read yet
    budget_ns = max(total_ns, room_ns - _spare(state, plan))
    note = f"speculate: the draft model drafts {sum(k for _, k in wanted)} tokens of {len(wanted)} streams"
    plan = plan._replace(drafting=tuple(wanted), drafting_ns=budget_ns).note(note)
    return _spend(state, plan, budget_ns, room_ns)


def _floor(state: SchedulerState, plan: Plan, room: DraftRoom) -> Plan:
    """Write into the plan how likely a draft must be to get a row. While no draft is that likely, the plan may be
    repeated.
    """
    if plan.guard is None:
        return plan
    floor = 2.0  # no draft is that likely
    for cells in _calls(state, plan):
        n, step_ns = len(cells), state.cost.decode_ns(len(cells), sum(cells))
        n_free = state.device.n_verify_rows - n if state.device.can_mix_rows or n == 1 else 0
        for k in range(1, n_free + 1):
            more_ns = state.cost.decode_ns(n + k, sum(cells) + k * min(cells)) - step_ns
            if more_ns > room.in_long_ns:
                break
            floor = min(floor, max(LEAST_SURVIVAL, n * more_ns / (k * step_ns)))
    return plan._replace(draft_floor=floor)
