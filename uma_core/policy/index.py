"""The sessions of a state, sorted once per tick: what every stage would otherwise search for itself.

Rules: derived from the state alone, and only sorts. `IndexedState` keeps the index, so that all stages share one pass;
a plain `SchedulerState` works everywhere and is sorted on demand.
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.plan import Plan
from uma_core.policy.state import SchedulerState, SessionView, by_adapters
from uma_core.types import Phase, Priority


class SessionIndex(NamedTuple):
    """Lists in order of arrival."""

    waiting: list[SessionView]  # QUEUED or PARKED and ready: may be admitted
    prompts: list[SessionView]  # PREFILL and ready
    interactive: list[SessionView]  # DECODE and ready: streams that somebody reads along
    background: list[SessionView]  # DECODE and ready: the others
    decodes: list[SessionView]  # both
    arriving: list[SessionView]  # interactive, DECODE, but their KV is still under way
    moving: list[SessionView]  # any session with a transfer under way
    held: list[SessionView]  # have a sequence, and a reader that takes nothing
    n_slots_used: int  # prefill slots taken by chunks, and by KV on its way out of them
    n_slots_background: int
    n_prompts_background: int  # background sessions in PREFILL that are not held
    clients: frozenset[int]
    round_ns: int  # predicted time of one decode round of the interactive streams, arriving ones included, alone

    @property
    def streams(self) -> list[SessionView]:
        return self.interactive + self.arriving


class IndexedState(SchedulerState):
    """A SchedulerState that remembers its index. Compares, prints and replays as the plain one."""

    index_: SessionIndex


def indexed(state: SchedulerState) -> IndexedState:
    """Attach the index, so that stages need not sort again. Idempotent."""
    if isinstance(state, IndexedState):
        return state
    out = IndexedState(*state)
    out.index_ = _sorted(out)
    return out


def index_of(state: SchedulerState) -> SessionIndex:
    return state.index_ if isinstance(state, IndexedState) else _sorted(state)


def _sorted(state: SchedulerState) -> SessionIndex:
    """One pass over the sessions."""
    waiting: list[SessionView] = []
    prompts: list[SessionView] = []
    interactive: list[SessionView] = []
    background: list[SessionView] = []
    arriving: list[SessionView] = []
    moving: list[SessionView] = []
    held: list[SessionView] = []
    clients = set()
    n_slots = n_slots_background = n_prompts_background = 0
    queued, parked, low = Phase.QUEUED, Phase.PARKED, Priority.BACKGROUND
    for s in state.sessions:
        phase = s.phase
        clients.add(s.client)
        if phase is queued or phase is parked:
            if s.is_ready:
                waiting.append(s)
            continue
        is_low = s.priority is low
        if s.is_transferring:
            moving.append(s)
        elif s.t_held_ns:
            held.append(s)
        has_slot = s.n_chunk > 0 or (s.is_transferring and (phase is Phase.PREFILL or s.n_generated <= 1))
        n_slots += has_slot
        n_slots_background += has_slot and is_low
        if phase is Phase.PREFILL:
            n_prompts_background += is_low and not s.t_held_ns
            if s.is_ready:
                prompts.append(s)
        elif phase is Phase.DECODE:
            if s.is_ready:
                (background if is_low else interactive).append(s)
            elif s.is_transferring and not is_low:
                arriving.append(s)
    return SessionIndex(
        waiting,
        prompts,
        interactive,
        background,
        interactive + background,
        arriving,
        moving,
        held,
        n_slots,
        n_slots_background,
        n_prompts_background,
        frozenset(clients),
        rows_time(state, interactive + arriving),
    )


def rows_time(state: SchedulerState, views: list[SessionView]) -> int:
    """Predicted time of one decode round of these sessions in their best calls."""
    return sum([_alike_time(state, alike) for alike in by_adapters(state.device, views)])


def _alike_time(state: SchedulerState, views: list[SessionView]) -> int:
    cost = state.cost
    if state.device.can_mix_rows:
        return cost.rows_ns(len(views), sum([v.n_past for v in views]))
    total = n = n_kv = 0
    last = -2
    for seq_id, n_past in sorted([(v.seq_id, v.n_past) for v in views]):
        if seq_id != last + 1 and n:
            total += cost.rows_ns(n, n_kv)
            n = n_kv = 0
        n += 1
        n_kv += n_past
        last = seq_id
    return total + cost.rows_ns(n, n_kv)


def prompt_view(state: SchedulerState, sid: int) -> SessionView:
    """View of a session whose prompt is planned: in PREFILL, or about to be admitted."""
    index = index_of(state)
    return next(v for group in (index.prompts, index.waiting) for v in group if v.sid == sid)


def prompts_of(state: SchedulerState, plan: Plan) -> list[SessionView]:
    """Sessions whose prompt can be read in this tick: those in PREFILL, and those that the plan admits.

    A session that is parked or restored (its cached beginning, or all of it after parking) is left for the next tick.
    """
    index = index_of(state)
    prompts = index.prompts
    if plan.restore or plan.park:
        prompts = [v for v in prompts if v.sid not in plan.restore and v.sid not in plan.park]
    if not plan.admit:
        return prompts
    admitted = {a.sid for a in plan.admit}
    fresh = [
        v
        for v in index.waiting
        if v.sid in admitted and v.phase is Phase.QUEUED and v.sid not in plan.restore and v.n_left
    ]
    return prompts + fresh


def seq_of(plan: Plan, view: SessionView) -> int:
    """The sequence that a session has, or gets by this plan."""
    return view.seq_id if view.seq_id >= 0 else next(a.seq_id for a in plan.admit if a.sid == view.sid)
