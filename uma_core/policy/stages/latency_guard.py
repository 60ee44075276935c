"""Latency guard: which work gets the room of a gap of the interactive streams (`tbt/` determines the room).

Transfers come first, then prompts or background streams (`_turn` says which). Work that does not fit an everyday gap
may have a long one while the bucket holds one, and is forced, one piece or one row, when it starves.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from uma_core.policy.chunks import Room, sized
from uma_core.policy.deadlines import is_first_awaited, is_late, left_to_read_ns, target_ns, urgent_limit_ns
from uma_core.policy.index import SessionIndex, index_of, prompt_view
from uma_core.policy.memory import TbtMemory
from uma_core.policy.order import in_turn, is_starved, n_rounds_without
from uma_core.policy.plan import Plan, PlanItem, PrefillMode, TbtDecision
from uma_core.policy.rows import added_ns, decode_items
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.policy.tbt.controller import LONG_GAP, learn, room_below, room_of
from uma_core.policy.tbt.limits import TbtLimits, tbt_limits

# Least time for transfers in a tick that moves KV or reads a prompt: one slice of cells, so that a chunk's KV can move.
# Without it background work takes 7 % longer; with four times as much TBT grows by 0.3 %.
SLICE_NS = 100_000


class Kind(IntEnum):
    """Why a gap holds more than the streams' own decode rows."""

    NOTHING = 0
    NORMAL = 1  # work that was predicted to fit the everyday limit
    LONG = 2  # work that was predicted to fit the long limit
    URGENT = 3  # a chat's prompt that would be late with everyday gaps: it has long gaps without credit
    FORCED = 4  # the starvation bound


class Grant(NamedTuple):
    """What the guard lets into the gap."""

    kind: Kind = Kind.NOTHING
    rows: tuple[SessionView, ...] = ()  # background streams
    prefill: PlanItem | None = None
    run_ns: int = 0
    min_pieces: int = 0
    need_ns: int = 0  # see TbtDecision
    holds_prompt: bool = False
    notes: tuple[str, ...] = ()


class Gap(NamedTuple):
    """Input that all decisions of a tick share."""

    state: SchedulerState
    sessions: SessionIndex
    limits: TbtLimits
    memory: TbtMemory
    room: Room  # left after transfers
    transfer_ns: int

    @property
    def has_long(self) -> bool:
        return self.memory.credit >= LONG_GAP

    def kind_of(self, ns: int, room: Room) -> Kind:
        """The kind of gap that holds work of `ns`; NOTHING if no gap does."""
        if ns <= room.in_everyday_ns:
            return Kind.NORMAL
        return Kind.LONG if self.has_long and ns <= room.in_long_ns else Kind.NOTHING

    def refusal(self, what: str, ns: int, room: Room) -> str:
        """Why work does not fit, in numbers. Credit is mentioned only if a long gap would have more room."""
        everyday, long = room.in_everyday_ns / 1e6, room.in_long_ns / 1e6
        if room.in_long_ns <= room.in_everyday_ns:
            return f"{what} {ns / 1e6:.3f} ms > room {everyday:.3f} (a long gap has no more)"
        there = f"long room {long:.3f}" if self.has_long else f"room {everyday:.3f} (long {long:.3f})"
        return f"{what} {ns / 1e6:.3f} ms > {there}, credit {self.memory.credit:.2f}"

    def spending(self, what: str, ns: int, room: Room) -> str:
        """Why work takes a long gap, in numbers."""
        credit = self.memory.credit
        return f", long gap on credit {credit:.2f}: {what}{ns / 1e6:.3f} ms > room {room.in_everyday_ns / 1e6:.3f}"

    def why_rarely(self, ns: int) -> str:
        """Why work of `ns` is forced only after RARELY times `starvation_ticks` rounds; empty if it is not."""
        return ", since with the round it exceeds the long limit" if self.limits.starvation_factor(ns) > 1 else ""

    def extra_ns(self, rows: list[SessionView]) -> int:
        """Time that these background rows add to the streams' own round."""
        return added_ns(self.state, self.sessions.interactive, rows)[0]


def run(state: SchedulerState, plan: Plan) -> Plan:
    index = index_of(state)
    if not index.round_ns:
        return plan
    memory = learn(state.memory.latency_guard, state)
    limits = tbt_limits(state, index)
    room = room_of(memory, limits)
    transfer_ns, kind = _transfer(state, index, room)
    room = room._replace(
        in_everyday_ns=max(0, room.in_everyday_ns - transfer_ns), in_long_ns=max(0, room.in_long_ns - transfer_ns)
    )
    gap = Gap(state, index, limits, memory, room, transfer_ns)
    item, *others = plan.prompts or (None,)
    planned = {i.sid for i in plan.decodes}
    wanted = [v for v in index.background if v.sid in planned]
    grant = _divide(gap, item, wanted)
    grant = grant._replace(kind=max(grant.kind, kind))
    plan = _applied(gap, plan, grant)
    if others:  # without prefill slots
        plan = plan.note(f"latency_guard: wait, since a gap reads one prompt: {', '.join(str(i.sid) for i in others)}")
    plan = plan._replace(guard=_decision(gap, grant, len(grant.rows) < len(wanted)))
    return plan.remember(latency_guard=_remembered(gap, plan, grant))


def seal(state: SchedulerState, plan: Plan) -> Plan:
    """Add the time of drafts to the planned time, by which the tick is judged."""
    memory = plan.memory.latency_guard
    return plan.remember(latency_guard=memory._replace(planned_ns=memory.planned_ns + plan.draft_ns))


def _divide(gap: Gap, item: PlanItem | None, wanted: list[SessionView]) -> Grant:
    """Divide the gap between the prompt `item` and the background streams `wanted`.

    If something of both fits, the gap is for the one whose turn it is.
    """
    rows = _rows(gap, wanted) if wanted else Grant()
    if item is None:
        return rows
    view = prompt_view(gap.state, item.sid)
    chat = _waiting_for(gap, view)
    grant = _prompt(gap, item, view, chat)
    if not rows.rows:
        return grant._replace(notes=grant.notes + rows.notes, need_ns=grant.need_ns or rows.need_ns)
    if grant.prefill is None:
        return rows._replace(notes=grant.notes + rows.notes, holds_prompt=True)
    are_rows_first, why = _turn(gap, view, chat, wanted)
    if are_rows_first:
        note = f"latency_guard: prompt {item.sid} waits: background streams go first: {why}"
        return rows._replace(notes=(*rows.notes, note), holds_prompt=True)
    # The streams get no rows, even if these seem to shorten the round: each number of rows has a correction of its
    # own, so that gain may be an error of prediction.
    note = f"latency_guard: 0 of {len(wanted)} background streams: prompt {item.sid} goes first: {why}"
    return grant._replace(notes=(*grant.notes, note))


def _turn(gap: Gap, view: SessionView, chat: SessionView | None, wanted: list[SessionView]) -> tuple[bool, str]:
    """Whether the background streams go before the prompt, and why.

    First come streams of which one starves, then a prompt whose first token a client awaits, then a prompt that
    starves, then whichever had less time.
    """
    n_rounds, n_most = _rounds_without(gap, wanted, 1)
    if n_rounds >= n_most:
        return True, f"one of them got no token for {n_rounds} rounds"
    if chat is not None:
        return False, "its first token is awaited" if chat is view else "an awaited prompt needs its prefill slot"
    if is_starved(gap.state, view):
        return False, f"it made no progress for {(gap.state.now_ns - view.t_progress_ns) / 1e6:.0f} ms"
    debt_ms = gap.memory.debt_ns / 1e6
    if debt_ms <= 0:
        return True, f"they had {-debt_ms:.3f} ms less than prompts"
    return False, f"prompts had {debt_ms:.3f} ms less than background streams"


def _waiting_for(gap: Gap, view: SessionView) -> SessionView | None:
    """The chat whose first token waits for this prompt: its own, or one that needs the only prefill slot, which a
    background chunk keeps. (The last one of several slots is kept for chats.)
    """
    if is_first_awaited(view):
        return view
    if not view.n_chunk or gap.state.device.n_prefill_slots > 1:
        return None
    return next((v for v in gap.sessions.prompts if is_first_awaited(v) and not v.n_chunk), None)


def _transfer(state: SchedulerState, index: SessionIndex, room: Room) -> tuple[int, Kind]:
    """Return the time for transfers of KV, and the kind of gap that they make.

    The time is what a chunk (or a whole restored beginning) needs, but at most the everyday room. A chat that streams
    and whose KV is on its way may take a long gap from the other streams, because every tick delays the chat's own next
    token.
    """
    if not index.moving:
        return 0, Kind.NOTHING
    n_ubatch = state.device.n_ubatch
    n_cells = sum(n_ubatch if v.n_past else max(v.n_prompt, n_ubatch) for v in index.moving)
    need = max(SLICE_NS, state.cost.transfer_ns(n_cells * state.device.kv_bytes_per_cell))
    ns = min(room.in_long_ns if index.arriving else room.in_everyday_ns, need)
    return ns, Kind.LONG if ns > room.in_everyday_ns else Kind.NORMAL if ns else Kind.NOTHING


def _rows(gap: Gap, wanted: list[SessionView]) -> Grant:
    """Grant as many background rows as the gap holds: all, or else some in rotation.

    If the gap holds none, the stream with the oldest token is forced at the starvation bound.
    """
    limit = gap.room.in_long_ns if gap.has_long else gap.room.in_everyday_ns
    chosen, too_many = _most(gap, wanted, limit)
    oldest = min(wanted, key=lambda v: (v.t_last_ns, v.sid))
    need = gap.extra_ns(chosen or [oldest])
    n_rounds, n_most = _rounds_without(gap, wanted, gap.limits.starvation_factor(need))
    waited = f", {n_rounds} rounds without a token"
    if chosen:
        kind, wait = gap.kind_of(need, gap.room), ""
        why = gap.spending("", need, gap.room) if kind is Kind.LONG else ""
    elif n_rounds >= n_most:
        chosen, kind, why, wait = [oldest], Kind.FORCED, ", against starvation", waited
    else:
        kind, why, wait = Kind.NOTHING, "", f"{waited}, forced after {n_most}{gap.why_rarely(need)}"
    if too_many:
        why += ": " + gap.refusal(f"{len(too_many)} of them", gap.extra_ns(too_many), gap.room)
    notes = (f"latency_guard: {len(chosen)} of {len(wanted)} background streams{why}{wait}",) if why or wait else ()
    return Grant(kind, tuple(chosen), need_ns=need, notes=notes)


def _most(gap: Gap, wanted: list[SessionView], limit: int) -> tuple[list[SessionView], list[SessionView]]:
    """All streams if they fit, else the longest prefix of the rotation that does, found by growing it, and the first
    one that does not.
    """
    if gap.extra_ns(wanted) <= limit:
        return wanted, []
    ordered, best, n = in_turn(wanted, gap.memory.cursor), 0, 1
    while best < len(ordered) and gap.extra_ns(ordered[:n]) <= limit:
        best, n = n, min(len(ordered), n + 1 + n // 8)
    return ordered[:best], ordered[:n]


def _rounds_without(gap: Gap, wanted: list[SessionView], times: int) -> tuple[int, int]:
    """Rounds since a background stream got a token or was forced, and the number of rounds (`starvation_ticks` x
    `times`) after which one is starved. It takes two rounds at least: streams that starved in every round would leave
    prompts no gap.
    """
    n_rounds = n_rounds_without(gap.state, wanted, gap.memory.forced_tick)
    return n_rounds, max(2, gap.state.config.starvation_ticks * times)


def _prompt(gap: Gap, item: PlanItem, view: SessionView, chat: SessionView | None) -> Grant:
    """Grant prompt work in an everyday gap (in an urgent one, if `chat` would be late), else in a long one, else one
    forced piece, else nothing.
    """
    room, fitting, notes = _awaited_room(gap, item, view, chat) if chat is not None else (gap.room, Kind.NORMAL, ())
    item, need = sized(gap.state, item, view, room)
    kind = gap.kind_of(need, room)
    if kind is Kind.NORMAL:
        run_ns = need if item.mode is PrefillMode.MIXED else room.in_everyday_ns
        return Grant(fitting, prefill=item, run_ns=run_ns, need_ns=need, notes=notes)
    what = "piece" if item.mode is PrefillMode.SLICED else f"whole chunk of {item.n_tokens}"  # mixed rows always fit
    why = gap.refusal(what, need, room)
    idle = f"{(gap.state.now_ns - view.t_progress_ns) / 1e6:.0f} ms without progress"
    # A restored beginning is copied into the prefill slot before the chunk's first piece. A run that is too short for a
    # piece can do that, so the prompt is forced one starvation bound later.
    is_copying = view.n_cached > 0 and view.n_past > 0 and bool(view.n_chunk) and not view.chunk_fraction
    starvation_factor = gap.limits.starvation_factor(need)
    if kind is Kind.LONG:
        note = gap.spending(f"{what} ", need, room)
        grant = Grant(kind, prefill=item, run_ns=room.in_long_ns)
    elif is_starved(gap.state, view, starvation_factor + is_copying):
        note = f", one {what} against starvation: {why}, {idle}"
        grant = Grant(Kind.FORCED, prefill=item, min_pieces=1)
    elif is_copying:
        note = f", no piece, but time to copy its restored beginning: {why}"
        grant = Grant(fitting, prefill=item, run_ns=room.in_everyday_ns, holds_prompt=True)
    else:
        n_rounds = starvation_factor * gap.state.config.starvation_ticks
        rounds = f"{n_rounds * gap.sessions.round_ns / 1e6:.0f} ms ({n_rounds} rounds{gap.why_rarely(need)})"
        note = f" waits: {why}, {idle}, forced after {rounds}"
        grant = Grant(holds_prompt=True)
    return grant._replace(need_ns=need, notes=(*notes, f"latency_guard: prompt {item.sid}{note}"))


def _awaited_room(gap: Gap, item: PlanItem, view: SessionView, chat: SessionView) -> tuple[Room, Kind, tuple[str, ...]]:
    """Room for a prompt while the client of `chat` awaits its first token. If that token would be late with everyday
    gaps, the gap is URGENT, and a note says by how much.

    Such prompts are in few gaps, so they may fill an everyday gap up to its limit, with no allowance for the error.
    """
    limits, state = gap.limits, gap.state
    everyday_ns = limits.everyday_ns - limits.round_ns - limits.host_ns - gap.transfer_ns
    plain = max(gap.room.in_everyday_ns, min(gap.room.in_long_ns, everyday_ns))
    room = gap.room._replace(in_everyday_ns=plain)
    if chat is not view:
        view = view._replace(n_prompt=view.n_past + view.n_chunk)  # the slot is free after this chunk
    sample, need = sized(state, item, view, room)
    left_ns = left_to_read_ns(state, view)
    # the prompt's time in an everyday gap, and the time in which chunks would read the same tokens
    if sample.mode is PrefillMode.MIXED:
        taken_ns, read_ns = need, left_ns * sample.n_tokens // view.n_left
    else:
        taken_ns = read_ns = room.in_everyday_ns // max(1, need) * need  # whole pieces
    due_ns = chat.t_queued_ns + target_ns(state, chat, limits.step_ns) - state.now_ns  # below 0: it is overdue
    if not is_late(due_ns, left_ns, limits.round_ns + taken_ns, read_ns):
        return room, Kind.NORMAL, ()
    due = f"due in {due_ns / 1e6:.0f} ms" if due_ns > 0 else f"overdue by {-due_ns / 1e6:.0f} ms"
    left = f"{left_ns / 1e6:.0f} ms are left to read"
    below_ns = room_below(urgent_limit_ns(state, limits), limits, gap.memory, is_overdue=due_ns <= 0)
    raised = max(plain, below_ns - gap.transfer_ns)
    note = f"latency_guard: prompt {item.sid} is urgent, {due}, {left}: room {raised / 1e6:.3f} instead of "
    return Room(raised, raised, is_most=due_ns <= 0), Kind.URGENT, (note + f"{plain / 1e6:.3f}",)


def _applied(gap: Gap, plan: Plan, grant: Grant) -> Plan:
    """Put the granted work into the plan."""
    rows, item = list(grant.rows), grant.prefill
    items = plan.decodes
    if len(items) != len(gap.sessions.interactive) + len(rows):
        items = decode_items(gap.state, gap.sessions.interactive, rows)
    run_ns, quantum_ns = grant.run_ns, 0
    if item is not None:
        if item.mode is PrefillMode.MIXED:
            item = item._replace(call=items[0].call)
        elif item.mode is PrefillMode.OWN_CALL:
            item = item._replace(call=1 + max((i.call for i in items), default=-1))
            run_ns = 0
        else:
            quantum_ns = grant.need_ns  # of one piece
        items = (*items, item)
    least = SLICE_NS if item is not None or gap.sessions.moving else 0
    return plan._replace(
        items=items,
        run_ns=run_ns,
        quantum_ns=quantum_ns,
        min_pieces=grant.min_pieces,
        transfer_ns=max(gap.transfer_ns, least),
        notes=plan.notes + grant.notes,
    )


def _remembered(gap: Gap, plan: Plan, grant: Grant) -> TbtMemory:
    """Return what later ticks need: the credit left, the planned time that the error is measured by, and whose turn
    it is.
    """
    memory, state = gap.memory, gap.state
    extra_ns = grant.need_ns if grant.rows else 0
    most = state.config.tick_budget_ns * 4
    is_own_call = grant.prefill is not None and grant.prefill.mode is PrefillMode.OWN_CALL
    prompt_ns = grant.need_ns if is_own_call or grant.min_pieces else plan.run_ns
    planned_ns = gap.limits.round_ns + extra_ns + prompt_ns + plan.transfer_ns + state.overhead_ns
    # Many urgent gaps come in a row. Each counts as the number of rounds that it takes; otherwise background streams
    # would wait for more than `starvation_ticks` rounds.
    n_more = round(planned_ns / gap.limits.round_ns) - 1 if grant.kind is Kind.URGENT else 0
    return memory._replace(
        tick=state.tick,
        t_plan_ns=state.now_ns,
        credit=0.0 if grant.kind >= Kind.LONG else memory.credit,  # urgent and forced gaps use up any credit
        planned_ns=planned_ns,
        debt_ns=max(-most, min(most, memory.debt_ns + extra_ns - prompt_ns)),
        cursor=grant.rows[-1].sid if grant.rows else memory.cursor,
        forced_tick=state.tick if grant.rows and grant.kind is Kind.FORCED else memory.forced_tick - n_more,
    )


def _decision(gap: Gap, grant: Grant, holds_rows: bool) -> TbtDecision:
    """Return the decision with the numbers that led to it."""
    return TbtDecision(
        holds_prompt=grant.holds_prompt,
        holds_rows=holds_rows,
        kind=grant.kind.name.lower(),
        round_ns=gap.limits.round_ns,
        everyday_ns=gap.limits.everyday_ns,
        long_ns=gap.limits.long_ns,
        room_ns=gap.room.in_everyday_ns,
        long_room_ns=gap.room.in_long_ns,
        need_ns=grant.need_ns,
        error=round(gap.memory.error, 4),
        credit=round(gap.memory.credit, 4),
    )
