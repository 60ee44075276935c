"""Admission: which session gets a KV sequence and the cells for prompt + max_tokens.

Rules: sessions are admitted in the order of policy/order.py, while a sequence is free and so are all cells that the
session may ever use. So no session runs out of cells later. Smaller requests may pass one that does not fit until that
one has aged. A chat may always pass a background request: the chat would take its place later anyway. Background
requests never pass a chat: they would take the room that is being made for it. At most as many background prompts as
there are prefill slots (but at least two) hold sequences: prompts are read one after another anyway, and the other
sequences stay free for chats. When an interactive request finds no room, one background session at a time is parked.
Before that, and for any waiting request, held sessions are parked: they cannot continue, and others need their
sequences and cells.
"""

from __future__ import annotations

from uma_core.policy.index import SessionIndex, index_of
from uma_core.policy.order import FAIR_QUANTUM_NS, urgency_key
from uma_core.policy.plan import Admission, Plan
from uma_core.policy.state import DeviceView, SchedulerState, SessionView
from uma_core.types import Phase, Priority

# A client may stop reading for this long before its session loses its sequence: a healthy process resumes well before.
# The simulator shows no effect: its clients never fall behind.
HELD_NS = 100_000_000
NO_SEQUENCE = "no sequence is free"


def run(state: SchedulerState, plan: Plan) -> Plan:
    index = index_of(state)
    held = [
        v for v in index.resident if v.t_held_ns and not v.is_transferring and state.now_ns - v.t_held_ns >= HELD_NS
    ]
    if index.waiting:
        plan = _waiting_served(state, plan, index, held)
    # held sessions whose chunk keeps other prompts from a prefill slot
    park = tuple(v.sid for v in held if v.n_chunk and v.sid not in plan.park)
    if not park or not (index.prompts or index.waiting):
        return plan
    plan = plan._replace(park=plan.park + park)
    return plan.note(f"admission: parks {', '.join(map(str, park))}, held with a chunk in a prefill slot")


def _waiting_served(state: SchedulerState, plan: Plan, index: SessionIndex, held: list[SessionView]) -> Plan:
    """Admit waiting sessions, or park one session to make room for the first that does not fit."""
    admitted: list[Admission] = []
    why = NO_SEQUENCE
    if state.device.free_seqs:
        admitted, blocked, why = _admit(state, sorted(index.waiting, key=urgency_key(state, plan.charged)), index)
    else:
        blocked = next((v for v in index.waiting if v.priority is Priority.INTERACTIVE), index.waiting[0])
    victims: tuple[int, ...] = ()
    if blocked is not None:
        victims = _victim(state, held, blocked) or _background_victim(state, index, blocked)
        if victims:
            why += f", parks {victims[0]} for {blocked.sid}"
    n_left = len(index.waiting) - len(admitted)
    if n_left:
        waits = "1 waits" if n_left == 1 else f"{n_left} wait"
        plan = plan.note(f"admission: {waits}: {why}")
    return plan._replace(admit=tuple(admitted), park=victims)


def cells_needed(view: SessionView, device: DeviceView) -> int:
    """Most KV cells that the session can ever use."""
    return view.n_cells or min(view.n_prompt + view.n_max, device.n_ctx_seq)


def _admit(
    state: SchedulerState, ordered: list[SessionView], index: SessionIndex
) -> tuple[list[Admission], SessionView | None, str]:
    """Return admissions in order, the session to make room for, and why the others wait."""
    device = state.device
    free = list(device.free_seqs)
    n_cells = device.n_cells_free
    n_reading = sum(
        v.priority is Priority.BACKGROUND and v.phase is Phase.PREFILL and not v.t_held_ns for v in index.resident
    )
    n_most = max(2, device.n_prefill_slots)
    n_prompts_left = n_most - n_reading
    admitted: list[Admission] = []
    blocked: SessionView | None = None
    chats_only = False
    why = f"at most {n_most} background prompts hold sequences"
    for view in ordered:
        is_background_prompt = view.priority is Priority.BACKGROUND and view.phase is Phase.QUEUED
        is_chat = view.priority is Priority.INTERACTIVE
        if (is_background_prompt and n_prompts_left <= 0) or (chats_only and not is_chat):
            continue
        need = cells_needed(view, device)
        if not free or (device.is_unified and need > n_cells):
            if blocked is None or (is_chat and blocked.priority is Priority.BACKGROUND):
                blocked = view
                why = f"{view.sid} needs {need} cells, {n_cells} are free" if free else NO_SEQUENCE
            is_old = state.now_ns - view.t_queued_ns > state.config.aging_ns
            if not free or (is_old and is_chat):
                break  # nobody passes it
            chats_only = chats_only or is_chat or is_old  # only chats pass a chat, or a request that has aged
            continue
        admitted.append(Admission(view.sid, free.pop(0)))
        n_cells -= need
        n_prompts_left -= is_background_prompt
    return admitted, blocked, why


def _background_victim(state: SchedulerState, index: SessionIndex, blocked: SessionView) -> tuple[int, ...]:
    """Choose one background session to park for a chat.

    A session that just came back stays for a while, so that sessions do not swap places all the time.
    """
    if blocked.priority is Priority.BACKGROUND or any(v.priority is Priority.BACKGROUND for v in index.moving):
        return ()
    residents = [
        v
        for v in index.background + index.prompts
        if v.priority is Priority.BACKGROUND
        and not v.n_chunk
        and not (v.is_embedding and v.n_past)
        and not (v.t_back_ns and _stays(state, v))
    ]
    return _victim(state, residents, blocked)


def _stays(state: SchedulerState, view: SessionView) -> bool:
    """Whether a session that came back keeps its sequence: for a while, and if it had waited for `aging_ns`, until some
    work was done for it. One that had to read its text again stays for `aging_ns` and until its next token. If sessions
    were parked before that, they could swap places forever.
    """
    since_ns, aging_ns = state.now_ns - view.t_back_ns, state.config.aging_ns
    if state.device.can_copy_prefix and state.device.can_rollback:
        return since_ns < FAIR_QUANTUM_NS or view.t_back_ns - view.t_progress_ns > aging_ns
    return since_ns < aging_ns or view.t_last_ns <= view.t_back_ns


def _victim(state: SchedulerState, residents: list[SessionView], blocked: SessionView) -> tuple[int, ...]:
    """Choose the session with the least KV to move among those that would make enough room, else among all."""
    if not residents:
        return ()
    device = state.device
    short = cells_needed(blocked, device) - device.n_cells_free if device.is_unified else 0
    shared = device.seq_shared
    enough = [v for v in residents if v.n_cells - (shared[v.seq_id] if shared else 0) >= short]
    return (min(enough or residents, key=lambda v: (v.n_past, v.sid)).sid,)
