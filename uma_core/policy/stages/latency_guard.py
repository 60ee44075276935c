"""Latency guard: beside an interactive stream, add only what its next gap can hold.

Rules (docs/POLICY.md has the bounds): everyday gaps stay below the cap minus a learned margin; a share of
`long_tick_share` may use the pause limit, for work that does not fit otherwise; an interactive prompt may have
long gaps as its deadline needs them; a prompt (or background stream) that saw no progress for
`starvation_ticks` decode rounds is forced one piece (one row). Transfers come first, then interactive
prompts, then background rows and prompts, whoever had less time.
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.carry import remember
from uma_core.policy.chunks import best_in_gaps
from uma_core.policy.gaps import GapLimits, gap_limits, urgent_cap
from uma_core.policy.guard_memory import CREDIT_MIN, GuardMemory, Kind, begin, earn, learn, n_rounds_since
from uma_core.policy.parts import Parts, parts_of, prompt_view, rows_time
from uma_core.policy.patience import is_first_awaited, left_to_read_ns
from uma_core.policy.plan import SLICED, GuardView, Plan, PlanItem
from uma_core.policy.ride import best_ride
from uma_core.policy.stages.decode_first import JOIN_GAIN, TALKERS, decode_items, in_turn
from uma_core.policy.stages.prefill_budget import chunk_limit, resize
from uma_core.policy.stages.prefill_order import is_starved
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Lane, Phase

NAME = "latency_guard"
PIECES_PER_GAP = 8
MAX_TRIED = 16  # background streams among which neighbours are looked for
HEADROOM = 0.7  # of an everyday gap, for which a new chunk's pieces are chosen: margins may grow before its end
RARELY = 4  # work that exceeds the pause limit by itself is forced so many times more rarely
ARRIVAL_MARGIN = 4  # times the predicted copy: cells are marked before they are copied
ARRIVAL_SHARE = 10  # of the streams' own round that this may take
BACKGROUND_SHARE = 0.4  # of the time between a stream's own round and the cap, for background prompts on a noisy machine
HOST_NS = 350_000  # of a long gap, for what the host does between the device's calls: however short a step is, that is not shorter
CHEAP_ROW = 0.2  # of a step of one row: what one more may take
SLICE_CELLS = 64  # a transfer moves no fewer at a time
SLICE_NS = 100_000  # a transfer that is under way gets at least this


class Room(NamedTuple):
    """Time beside the streams' own decode in this tick's gap."""

    normal_ns: int
    long_ns: int
    forced_ns: int  # up to the pause limit, without margins
    credit: float  # long gaps that may be spent
    plain_ns: int  # of an everyday gap, without margins

    @property
    def has_credit(self) -> bool:
        return self.credit >= 1.0

    def refusal(self, what: str, need_ns: int) -> str:
        """Why it does not fit, in numbers."""
        room_ns, name = (self.long_ns, "long room") if self.has_credit else (self.normal_ns, "room")
        return f"{what} {need_ns / 1e6:.3f} ms > {name} {room_ns / 1e6:.3f}, credit {self.credit:.1f}"

    def less(self, ns: int) -> Room:
        """What is left after `ns` of it."""
        return self._replace(normal_ns=max(0, self.normal_ns - ns), long_ns=max(0, self.long_ns - ns)) if ns else self


class Grant(NamedTuple):
    """What the guard lets into the gap."""

    workers: list[SessionView]
    prefill: PlanItem | None
    run_ns: int
    min_pieces: int
    transfer_ns: int
    kind: Kind
    notes: tuple[str, ...]
    rides: bool = False  # the prefill item, in the streams' own call; run_ns: what it adds there
    room: Room | None = None  # by which it was decided
    need_ns: int = 0  # shortest piece, chunk or row that was looked at
    is_held: bool = False  # the prompt could have been read, and is not


def run(state: SchedulerState, plan: Plan) -> Plan:
    parts = parts_of(state)
    old = state.carry.get(NAME)
    memory = old if isinstance(old, GuardMemory) else GuardMemory()
    if not parts.talk_ns:
        return plan if old is None else remember(plan, NAME, memory._replace(watch_sid=-1, last_kind=Kind.NOTHING))
    limits = gap_limits(state, parts)
    n_rounds = n_rounds_since(memory, parts)
    memory = earn(begin(learn(memory, state, parts, limits), parts), state.knobs.long_tick_share * n_rounds if parts.talkers else 0.0)
    grant = _grant(state, plan, parts, limits, memory)
    view = _view(parts, plan, limits, memory, grant)
    memory = _remember(state, parts, memory, grant)
    return remember(_apply(state, plan, parts, grant)._replace(guard=view), NAME, memory)


def n_rounds_held(state: SchedulerState, plan: Plan) -> int:
    """For how many further rounds this finished plan's background streams, none of which fits, are held back without a new look:
    until a long gap may be spent, or one of them starves. 0: the plan has something for them, or the guard was not asked.
    """
    memory = plan.carry.get(NAME)
    parts = parts_of(state)
    if not isinstance(memory, GuardMemory) or memory.last_kind != Kind.NOTHING:
        return 0
    dates = [_n_rounds_to_starvation(state, parts, parts.workers, memory, times) for times in (1, RARELY)]
    n = next((n for n in dates if n > 0), 1)
    share = state.knobs.long_tick_share
    return min(n, int((1.0 - memory.credit) / share) + 1 if share and memory.credit < 1.0 else n) - 1


def _grant(state: SchedulerState, plan: Plan, parts: Parts, limits: GapLimits, memory: GuardMemory) -> Grant:
    """Share out the gap."""
    item = next((i for i in plan.items if i.phase is Phase.PREFILL), None)
    view = prompt_view(state, item.sid) if item else None
    is_urgent = view is not None and is_first_awaited(view)
    room = _room(limits, memory, limits.cap_ns)
    transfer = _transfer_time(state, parts, room)
    moved = Kind.LONG if transfer > room.normal_ns else Kind.NORMAL if transfer else Kind.NOTHING
    if is_urgent and item and view:
        transfer = max(transfer, _arrival_time(state, item, view, limits, room))
    room = room.less(max(transfer, _slice_time(state, parts)))
    wanted = _planned_workers(parts, plan)
    if item is None and not wanted:
        return Grant([], None, 0, 0, transfer, moved, (), room=room)
    prompt_room = _prompt_room(limits, memory, room, is_urgent)
    are_first = (not is_urgent and memory.debt_ns <= 0) or item is None or (bool(wanted) and _rows_starved(state, parts, wanted, memory, 1))
    if wanted and are_first:
        workers, kind = _rows_that_fit(state, parts, wanted, room, memory)
        if workers:
            left = prompt_room.normal_ns - _extra_time(state, parts, workers) if kind is Kind.NORMAL else 0
            piece, run_ns, pieces = _piece_that_fits(state, item, view, left)
            is_held = item is not None and piece is None
            notes = _row_notes(state, parts, room, workers, wanted, kind)
            notes = (*notes, "latency_guard: the prompt waits, background streams had less time") if is_held else notes
            return Grant(workers, piece, run_ns, pieces, transfer, max(kind, moved), notes, room=room, is_held=is_held)
    cap = urgent_cap(state, view, limits, *_usual(state, item, view, prompt_room)) if is_urgent and view and item else limits.cap_ns
    is_raised = cap > limits.cap_ns
    grant = _prefill(state, item, view, _room(limits, memory, cap).less(transfer) if is_raised else prompt_room, is_raised)
    if grant.prefill is None and wanted and not are_first:
        workers, kind = _rows_that_fit(state, parts, wanted, room, memory)
        notes = grant.notes + _row_notes(state, parts, room, workers, wanted, kind)
        return grant._replace(workers=workers, transfer_ns=transfer, kind=max(kind, moved), notes=notes)
    notes = grant.notes + _row_notes(state, parts, room, [], wanted, Kind.NOTHING)
    return grant._replace(transfer_ns=transfer, kind=max(grant.kind, moved), notes=notes)


def _usual(state: SchedulerState, item: PlanItem, view: SessionView, room: Room) -> tuple[int, int]:
    """What an everyday gap gives this prompt, and the time in chunks that this replaces: whole pieces, or rows that ride."""
    ride = best_ride(state, view, room.normal_ns) if item.call == SLICED else None
    if ride:
        return ride.ns, left_to_read_ns(state, view) * ride.n_tokens // view.n_left
    piece = max(1, state.cost.piece_ns(item.n_tokens, view.n_past))
    return (room.normal_ns // piece * piece,) * 2


def _room(limits: GapLimits, memory: GuardMemory, cap: int) -> Room:
    """Room below `cap`; a raised cap keeps the margin of long gaps, which the machine's noise stretches as a whole."""
    solo, limit = limits.solo_ns, max(limits.pause_ns, cap)
    longest = min(limit - solo * memory.hard_margin, limit / (1.0 + memory.noise))
    long_ns = max(0, int(longest - solo) - HOST_NS)
    normal = max(0, int((cap - solo * (1.0 + memory.margin)) * memory.throttle))
    everyday = min(normal, long_ns) if cap > limits.cap_ns else normal
    return Room(everyday, max(normal, long_ns), limits.pause_ns - solo, memory.credit, limits.cap_ns - solo)


def _prompt_room(limits: GapLimits, memory: GuardMemory, room: Room, is_urgent: bool) -> Room:
    """What a prompt may have of an everyday gap. Gaps are judged by the cap plus the machine's own noise.

    A chat's prompt, which is in few gaps, may fill them up to that; a background prompt, which is in most of them, leaves as much free
    below the cap, so that they stay below it with the noise that comes on top.
    """
    noise_ns = int(limits.cap_ns * memory.noise * memory.throttle)
    if is_urgent:
        return room._replace(normal_ns=min(room.normal_ns + noise_ns, room.long_ns))
    least = min(room.normal_ns, int(BACKGROUND_SHARE * (limits.cap_ns - limits.solo_ns)))
    return room._replace(normal_ns=max(room.normal_ns - noise_ns, least))


def _transfer_time(state: SchedulerState, parts: Parts, room: Room) -> int:
    """Time for KV under way: what a chunk (or a whole beginning that is restored) needs, half of the room unless a chat waits for it.

    A chat that streams already and waits for its KV may have a long gap of the others: its own next token is late with every tick.
    """
    if not parts.moving:
        return 0
    n_cells = sum(state.device.n_ubatch if v.n_past else max(v.n_prompt, state.device.n_ubatch) for v in parts.moving)
    need = max(SLICE_NS, state.cost.transfer_ns(n_cells * state.device.kv_bytes_per_cell))
    if not parts.talkers or parts.arriving:
        return min(room.long_ns, need)
    is_awaited = any(v.lane is Lane.INTERACTIVE for v in parts.moving)
    return min(room.normal_ns if is_awaited else room.normal_ns // 2, need)


def _slice_time(state: SchedulerState, parts: Parts) -> int:
    """What a transfer under way takes, however little time it is given."""
    return state.cost.transfer_ns(SLICE_CELLS * state.device.kv_bytes_per_cell) if parts.moving else 0


def _arrival_time(state: SchedulerState, item: PlanItem, view: SessionView, limits: GapLimits, room: Room) -> int:
    """Time for the KV of a chat whose last chunk may end in this run: its second token need not wait for a tick of the others then."""
    left = state.cost.prefill_ns(item.n_tokens, view.n_past) * (1.0 - view.chunk_fraction)
    if item.call != SLICED or item.n_tokens < view.n_left - 1 or left > room.long_ns:
        return 0
    need = state.cost.transfer_ns(item.n_tokens * state.device.kv_bytes_per_cell)
    return min(max(SLICE_NS, ARRIVAL_MARGIN * need), limits.solo_ns // ARRIVAL_SHARE, room.long_ns)


def _planned_workers(parts: Parts, plan: Plan) -> list[SessionView]:
    planned = {i.sid for i in plan.items if i.phase is Phase.DECODE}
    return [v for v in parts.workers if v.sid in planned]


def _extra_time(state: SchedulerState, parts: Parts, workers: list[SessionView]) -> int:
    """Predicted time that these background rows add to the streams' own round."""
    alone = rows_time(state, workers)
    if not parts.talkers:
        return alone
    together = parts.decoders if len(workers) == len(parts.workers) else parts.talkers + workers
    own, both = rows_time(state, parts.talkers), rows_time(state, together)
    return both - own if both < JOIN_GAIN * (own + alone) else alone


def _rows_starved(state: SchedulerState, parts: Parts, wanted: list[SessionView], memory: GuardMemory, times: int) -> bool:
    """True if a background stream got no token for `starvation_ticks` x `times` rounds, and none was forced for as long."""
    return _n_rounds_to_starvation(state, parts, wanted, memory, times) <= 0


def _n_rounds_to_starvation(state: SchedulerState, parts: Parts, wanted: list[SessionView], memory: GuardMemory, times: int) -> int:
    bound = state.knobs.starvation_ticks * times
    oldest = min(v.t_last_ns or v.t_progress_ns for v in wanted)
    return max(bound - (state.now_ns - oldest) // parts.talk_ns, bound - (state.tick - memory.forced_tick))


def _rows_that_fit(
    state: SchedulerState, parts: Parts, wanted: list[SessionView], room: Room, memory: GuardMemory
) -> tuple[list[SessionView], Kind]:
    """As many background rows as the gap holds: all, else in turn, else neighbours of the streams' own sequences.

    The one with the oldest token is forced at the starvation bound.
    """
    limit = room.long_ns if room.has_credit else room.normal_ns
    chosen = wanted
    if _extra_time(state, parts, wanted) > limit:
        ordered = in_turn(wanted, memory.cursor)
        chosen = _most(state, parts, ordered, limit)
        oldest = min(wanted, key=lambda v: (v.t_last_ns, v.sid))
        times = 1 if _extra_time(state, parts, [oldest]) <= room.forced_ns else RARELY
        if not chosen and _rows_starved(state, parts, wanted, memory, times):
            return [oldest], Kind.FORCED
        if not chosen and not state.device.can_mix_rows:
            chosen = _most(state, parts, _neighbours(parts, ordered), limit)
    if not chosen:
        return [], Kind.NOTHING
    return chosen, Kind.NORMAL if _extra_time(state, parts, chosen) <= room.normal_ns else Kind.LONG


def _most(state: SchedulerState, parts: Parts, ordered: list[SessionView], limit: int) -> list[SessionView]:
    """The longest beginning of the list that fits, found by growing it."""
    best, n = 0, 1
    while best < len(ordered) and _extra_time(state, parts, ordered[:n]) <= limit:
        best, n = n, min(len(ordered), n + 1 + n // 8)
    return ordered[:best]


def _neighbours(parts: Parts, views: list[SessionView]) -> list[SessionView]:
    """Those whose sequences adjoin the streams' (and then each other's): they can share a call where each sequence has its own stream."""
    taken = {v.seq_id for v in parts.talkers}
    left = {v.seq_id: v for v in views[:MAX_TRIED]}
    chain: list[SessionView] = []
    while near := [s for s in left if s - 1 in taken or s + 1 in taken]:
        chain.append(left.pop(near[0]))
        taken.add(near[0])
    return chain


def _prefill(state: SchedulerState, item: PlanItem | None, view: SessionView | None, room: Room, is_urgent: bool) -> Grant:
    """Rows in the streams' own call, else a run of pieces in a normal gap, else on credit, else one forced piece, else nothing."""
    if item is None or view is None:
        return Grant([], None, 0, 0, 0, Kind.NOTHING, ())
    if item.call != SLICED:
        return _chunk(state, item, view, room, is_urgent)
    everyday = Kind.URGENT if is_urgent else Kind.NORMAL
    ride = best_ride(state, view, room.normal_ns)
    if ride:
        return Grant([], resize(item, view, ride.n_tokens), ride.ns, 0, 0, everyday, (), True, room, ride.ns)
    if not view.n_chunk:
        gaps = (int(room.normal_ns * HEADROOM), room.long_ns, _long_share(state, view, room))
        item = resize(item, view, best_in_gaps(state.cost, _n_to_read(state, item, view), view.n_past, chunk_limit(state), gaps))
    piece = state.cost.piece_ns(item.n_tokens, view.n_past)
    if piece <= room.normal_ns:
        return Grant([], item, room.normal_ns, 0, 0, everyday, (), room=room, need_ns=piece)
    if room.has_credit and piece <= room.long_ns:
        notes = (f"latency_guard: long gap on credit {room.credit:.1f}: piece {piece / 1e6:.3f} ms > room {room.normal_ns / 1e6:.3f}",)
        return Grant([], item, room.long_ns, 0, 0, Kind.LONG, notes, room=room, need_ns=piece)
    why = room.refusal("piece", piece)
    fills = view.n_cached > 0 and view.n_past > 0 and not view.chunk_fraction  # its lane may lack what was restored
    if is_starved(state, view, (1 if piece <= room.forced_ns else RARELY) + fills):
        return Grant([], item, 0, 1, 0, Kind.FORCED, (f"latency_guard: one piece against starvation: {why}",), room=room, need_ns=piece)
    if fills:  # no time for a piece, but for the copies that come before the first one
        notes = (f"latency_guard: no piece fits, a lane may fill: {why}",)
        return Grant([], item, room.normal_ns, 0, 0, everyday, notes, room=room, need_ns=piece, is_held=True)
    return Grant([], None, 0, 0, 0, Kind.NOTHING, (f"latency_guard: no piece fits: {why}",), room=room, need_ns=piece, is_held=True)


def _long_share(state: SchedulerState, view: SessionView, room: Room) -> float:
    """Share of long gaps by which a chunk's size is chosen. None where this prompt would ride but for the margins of now: a chunk that
    needs long gaps would keep it from riding when there is room again.
    """
    return 0.0 if best_ride(state, view, room.plain_ns) else state.knobs.long_tick_share


def _n_to_read(state: SchedulerState, item: PlanItem, view: SessionView) -> int:
    """Tokens of the prompt that chunks have to read. Where one more row of the streams' call is cheap, the last one becomes
    that row: the output's matrix, which it alone needs, is read there anyway.
    """
    if view.n_generated or view.n_left <= 1:
        return view.n_left
    talkers = parts_of(state).talkers
    extra = rows_time(state, [*talkers, view._replace(seq_id=item.seq_id)]) - rows_time(state, talkers)
    return view.n_left - (extra <= CHEAP_ROW * state.cost.solo_step_ns(view.n_past))


def _chunk(state: SchedulerState, item: PlanItem, view: SessionView, room: Room, is_urgent: bool) -> Grant:
    """Without resumable prefill: the largest legal chunk that fits, the smallest one when starved."""
    cost = state.cost
    sizes = [n for n in (*cost.chunks, item.n_tokens) if n <= item.n_tokens]
    for limit, kind in ((room.normal_ns, Kind.URGENT if is_urgent else Kind.NORMAL), (room.long_ns if room.has_credit else 0, Kind.LONG)):
        fits = [n for n in sizes if cost.prefill_ns(n, view.n_past) <= limit]
        if fits:
            why = f" on credit {room.credit:.1f}" if kind is Kind.LONG else ""
            need = cost.prefill_ns(max(fits), view.n_past)
            notes = (f"latency_guard: chunk of {max(fits)}{why}",)
            return Grant([], resize(item, view, max(fits)), 0, 0, 0, kind, notes, room=room, need_ns=need)
    need = cost.prefill_ns(min(sizes), view.n_past)
    why = room.refusal(f"chunk of {min(sizes)}", need)
    if is_starved(state, view, 1 if need <= room.forced_ns else RARELY):
        notes = (f"latency_guard: one chunk against starvation: {why}",)
        return Grant([], resize(item, view, min(sizes)), 0, 0, 0, Kind.FORCED, notes, room=room, need_ns=need)
    return Grant([], None, 0, 0, 0, Kind.NOTHING, (f"latency_guard: no chunk fits: {why}",), room=room, need_ns=need, is_held=True)


def _piece_that_fits(state: SchedulerState, item: PlanItem | None, view: SessionView | None, left: int) -> tuple[PlanItem | None, int, int]:
    """Prompt work in what background rows left of a normal gap."""
    if item is None or view is None or item.call != SLICED or not view.n_chunk:
        return None, 0, 0
    return (item, left, 0) if state.cost.piece_ns(item.n_tokens, view.n_past) <= left else (None, 0, 0)


def _row_notes(
    state: SchedulerState, parts: Parts, room: Room, workers: list[SessionView], wanted: list[SessionView], kind: Kind
) -> tuple[str, ...]:
    """Why background streams are left out, or are let in although they do not fit an everyday gap."""
    n, n_wanted = len(workers), len(wanted)
    why = {Kind.LONG: f", on credit {room.credit:.1f}", Kind.FORCED: ", against starvation"}.get(kind, "")
    if n == n_wanted and not why:
        return ()
    if n < n_wanted:
        served = {v.sid for v in workers}
        one_more = [*workers, next(v for v in wanted if v.sid not in served)]
        why += ": " + room.refusal(f"{n + 1} of them", _extra_time(state, parts, one_more))
    return (f"latency_guard: {n} of {n_wanted} background streams{why}",)


def _view(parts: Parts, plan: Plan, limits: GapLimits, memory: GuardMemory, grant: Grant) -> GuardView:
    """What was decided, and by which numbers."""
    room = grant.room or _room(limits, memory, limits.cap_ns)
    return GuardView(
        holds_prompt=grant.is_held,
        holds_rows=len(grant.workers) < len(_planned_workers(parts, plan)),
        kind=int(grant.kind),
        solo_ns=limits.solo_ns,
        cap_ns=limits.cap_ns,
        pause_ns=limits.pause_ns,
        room_ns=room.normal_ns,
        long_room_ns=room.long_ns,
        need_ns=grant.need_ns,
        margin=round(memory.margin, 4),
        hard_margin=round(memory.hard_margin, 4),
        noise=round(memory.noise, 4),
        credit=round(memory.credit, 4),
        throttle=round(memory.throttle, 4),
    )


def _apply(state: SchedulerState, plan: Plan, parts: Parts, grant: Grant) -> Plan:
    """The plan with what was granted; transfers get the rest of the run if a chunk may end in it."""
    items = tuple([i for i in plan.items if i.phase is Phase.DECODE])
    if len(items) != len(parts.talkers) + len(grant.workers):
        items = tuple([i for i in items if i.reason == TALKERS])  # calls of their own, planned already
        if grant.workers or len(items) != len(parts.talkers):
            items = decode_items(state, parts.talkers, grant.workers)
    quantum = 0
    if grant.prefill is not None:
        item = grant.prefill
        if grant.rides:
            item = item._replace(call=items[0].call)
        elif item.call == SLICED:
            piece = state.cost.piece_ns(item.n_tokens, prompt_view(state, item.sid).n_past)
            quantum = max(piece, grant.run_ns // PIECES_PER_GAP)
        else:
            item = item._replace(call=1 + max((i.call for i in items), default=-1))
        items = (*items, item)
    transfer = max(grant.transfer_ns, SLICE_NS if grant.prefill is not None or parts.moving else 0)
    return plan._replace(
        items=items,
        run_ns=grant.run_ns,
        quantum_ns=quantum,
        min_pieces=grant.min_pieces,
        transfer_ns=transfer,
        notes=plan.notes + grant.notes,
    )


def _remember(state: SchedulerState, parts: Parts, memory: GuardMemory, grant: Grant) -> GuardMemory:
    debt = memory.debt_ns - grant.run_ns
    if grant.workers:
        debt += _extra_time(state, parts, grant.workers)
    limit = state.knobs.tick_budget_ns * 4
    credit = max(CREDIT_MIN, memory.credit - 1.0) if grant.kind in (Kind.LONG, Kind.FORCED, Kind.URGENT) else memory.credit
    forced = state.tick if grant.workers and grant.kind is Kind.FORCED else memory.forced_tick
    cursor = grant.workers[-1].sid if grant.workers else memory.cursor
    return memory._replace(
        debt_ns=max(-limit, min(limit, debt)), last_kind=int(grant.kind), credit=credit, forced_tick=forced, cursor=cursor
    )
