"""The Plan: what one tick does. It is the policy's frozen output, and is checked before it is executed.

A tick = admissions, then decode calls (items with the same `call` share one), then at most one run of a resumable
prefill, then transfers for the time that is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from uma_core.policy.memory import PolicyMemory
from uma_core.policy.state import DeviceView, SchedulerState, SessionView, by_adapters
from uma_core.types import Phase


class PrefillMode(IntEnum):
    """How a prompt is fed to the engine."""

    SLICED = 0  # a chunk in pieces, after the decode calls; it may stop between two pieces and go on in a later tick
    OWN_CALL = 1  # a chunk as a decode call of its own
    MIXED = 2  # some tokens as further rows of the interactive streams' decode call


class PlanItem(NamedTuple):
    sid: int
    seq_id: int
    phase: Phase  # PREFILL or DECODE
    n_tokens: int  # decode: 1, plus the draft tokens to verify; prefill: chunk length
    want_logits: bool  # decode: always; prefill: on the prompt's last chunk
    call: int  # number of its decode call; -1 for a SLICED run, which is no decode call
    reason: str
    mode: PrefillMode | None = None  # None: DECODE


class Admission(NamedTuple):
    sid: int
    seq_id: int


class TbtDecision(NamedTuple):
    """The latency guard's decision in a tick beside interactive streams, and its numbers. Nanoseconds, unless noted."""

    holds_prompt: bool  # the prompt chosen for this tick got nothing; other prompts do not count
    holds_rows: bool  # background streams could have been served, and some were not
    kind: str  # why the gap holds more than the streams' own rows: nothing, normal, long, urgent, forced
    round_ns: int  # predicted decode round of all interactive streams
    everyday_ns: int  # limit of an everyday gap
    long_ns: int  # limit of a long one
    room_ns: int  # time for other work in an everyday gap, less transfers; awaited prompts may have more
    long_room_ns: int  # ... and in a long one
    # predicted time of the smallest work considered: a piece, a chunk, or what background rows add to the round (below
    # 0 if more rows seem faster); 0: none was considered
    need_ns: int
    error: float  # learned error of planned times (tbt/controller.py)
    credit: float  # long gaps that may be spent; one needs at least 1


class Plan(NamedTuple):
    admit: tuple[Admission, ...] = ()
    items: tuple[PlanItem, ...] = ()
    park: tuple[int, ...] = ()  # sids whose KV is to leave the device
    run_ns: int = 0  # time for the SLICED item, counted from its start; or the time that a MIXED one adds to its call
    quantum_ns: int = 0  # target length of its pieces
    min_pieces: int = 0  # pieces that are computed even if run_ns is too short (the starvation bound)
    transfer_ns: int = 0  # time for transfers
    # how many further ticks may repeat this plan, as long as no session arrives, ends or changes its phase ...
    n_repeats: int = 0
    t_repeat_ns: int = 0  # ... and until when, because ticks may take many times as long as predicted
    memory: PolicyMemory = PolicyMemory()
    notes: tuple[str, ...] = ()  # one per change a stage made, for trace and status
    # sids of sessions whose prompt's beginning is restored from the cache; they have no item in this tick
    restore: tuple[int, ...] = ()
    charged: Mapping[int, int] = {}  # measured ns charged to each client; empty while there is only one client
    guard: TbtDecision | None = None  # None: no interactive stream, or no such stage
    # limit by which metrics judge this tick's gap if a stream has no target of its own; the guard ignores it; 0: none
    tbt_limit_ns: int = 0
    tick_limit_ns: int = 0  # limit of this tick; 0: nothing waits for its end
    bmt_bytes: int = 0  # estimated bytes that the tick moves through memory; 0: no such stage
    bmt_budget: int = 0  # bytes that it may move; 0: no budget
    draft_ns: int = 0  # time that making and verifying drafts adds to what the latency guard planned
    stretch: float = 0.0  # how far a round with drafts exceeds the limit of one token, as a multiple of that limit
    draft_floor: float = 0.0  # a first draft token less likely than this would get no row in this plan
    drafting: tuple[tuple[int, int], ...] = ()  # (sid, tokens) that the draft model drafts after the decode calls ...
    drafting_ns: int = 0  # ... in this much time, including that for text it has not read yet

    @property
    def decodes(self) -> tuple[PlanItem, ...]:
        return tuple([item for item in self.items if item.phase is Phase.DECODE])

    @property
    def prompts(self) -> tuple[PlanItem, ...]:
        return tuple([item for item in self.items if item.phase is Phase.PREFILL])

    def remember(self, **fields: Any) -> Plan:
        """Return the plan with a new value in a stage's memory: `remember(stage=value)`."""
        return self._replace(memory=self.memory._replace(**fields))

    def note(self, text: str) -> Plan:
        return self._replace(notes=(*self.notes, text))


def check_plan(state: SchedulerState, plan: Plan) -> list[str]:
    """List violations of the plan's contract; the list of a sound plan is empty. Pure; runs every tick.

    A violation is a bug of a stage: the executor counts it and falls back to `decode_only`.
    """
    by_sid = {s.sid: s for s in state.sessions}
    free = set(state.device.free_seqs)
    faults: list[str] = []
    for admission in plan.admit:
        faults += _check_admission(by_sid.get(admission.sid), admission, free)
    seqs_admitted = {a.sid: a.seq_id for a in plan.admit}
    seen: set[int] = set()
    calls: dict[int, list[PlanItem]] = {}
    n_sliced = 0
    for item in plan.items:
        if item.sid in seen:
            faults.append(f"session {item.sid} is planned twice")
        seen.add(item.sid)
        faults += _check_item(by_sid.get(item.sid), item, seqs_admitted, state)
        if item.mode is PrefillMode.SLICED:
            n_sliced += 1
        else:
            calls.setdefault(item.call, []).append(item)
    for call, items in calls.items():
        faults += _check_call(call, items, by_sid, state.device)
    unfit = [sid for sid in plan.restore if not _can_restore(by_sid.get(sid), seqs_admitted, seen)]
    faults += [f"session {sid} cannot be restored now" for sid in unfit]
    for sid, n in plan.drafting:
        view = by_sid.get(sid)
        if sid not in seen or view is None or not 1 <= n <= len(view.draft_rates):
            faults.append(f"session {sid}: {n} tokens for the draft model")
    if n_sliced > 1:
        faults.append(f"{n_sliced} resumable prefills in one tick")
    if n_sliced and not state.device.n_prefill_slots:
        faults.append("resumable prefill planned, but the engine has none")
    if min(plan.run_ns, plan.quantum_ns, plan.min_pieces, plan.transfer_ns, plan.drafting_ns) < 0:
        faults.append("negative budget")
    return faults


def _check_admission(view: SessionView | None, admission: Admission, free: set[int]) -> list[str]:
    if view is None or view.phase not in (Phase.QUEUED, Phase.PARKED):
        return [f"admits session {admission.sid}, which is not waiting"]
    if admission.seq_id not in free:
        return [f"admits session {admission.sid} to sequence {admission.seq_id}, which is taken"]
    free.discard(admission.seq_id)
    return []


def _check_call(call: int, items: list[PlanItem], by_sid: dict[int, SessionView], device: DeviceView) -> list[str]:
    n_rows, faults = sum([i.n_tokens for i in items]), []
    if n_rows > device.n_batch:
        faults.append(f"call {call} has {n_rows} tokens, n_batch is {device.n_batch}")
    if n_rows > device.n_verify_rows and any(i.phase is Phase.DECODE and i.n_tokens > 1 for i in items):
        faults.append(f"call {call} verifies drafts with {n_rows} rows, the most is {device.n_verify_rows}")
    if device.one_set_per_call:
        sets = {by_sid[i.sid].adapters for i in items if i.sid in by_sid}
        if len(sets) > 1:
            faults.append(f"call {call} has rows of {len(sets)} adapter sets")
    return faults


def _can_restore(view: SessionView | None, admitted: dict[int, int], planned: set[int]) -> bool:
    if view is None or view.sid in planned or not view.is_ready or view.n_chunk:
        return False
    return view.sid in admitted or view.phase is Phase.PREFILL


def _check_item(view: SessionView | None, item: PlanItem, admitted: dict[int, int], state: SchedulerState) -> list[str]:
    if view is None:
        return [f"unknown session {item.sid}"]
    seq_id = admitted.get(item.sid, view.seq_id)
    faults = []
    if item.seq_id != seq_id or seq_id < 0:
        faults.append(f"session {item.sid} owns sequence {seq_id}, not {item.seq_id}")
    if not view.is_ready:
        faults.append(f"session {item.sid} is not ready")
    if item.phase is Phase.DECODE:
        if view.phase is not Phase.DECODE:
            faults.append(f"session {item.sid} cannot decode yet")
        is_fit = 1 <= item.n_tokens <= 1 + len(view.survival)
        if not is_fit or not item.want_logits or item.call < 0 or item.mode is not None:
            faults.append(f"session {item.sid}: bad decode item")
    elif item.phase is Phase.PREFILL:
        faults += _check_prefill(view, item, state)
    else:
        faults.append(f"session {item.sid}: phase {item.phase!r} cannot be planned")
    return faults


def _check_prefill(view: SessionView, item: PlanItem, state: SchedulerState) -> list[str]:
    faults, n_left = [], view.n_left
    if not 1 <= item.n_tokens <= n_left:
        faults.append(f"session {item.sid}: chunk of {item.n_tokens} with {n_left} tokens left")
    if view.n_chunk and item.n_tokens != view.n_chunk:
        faults.append(f"session {item.sid}: a chunk of {view.n_chunk} is in progress, {item.n_tokens} planned")
    if item.mode is None or (item.call < 0) != (item.mode is PrefillMode.SLICED):
        faults.append(f"session {item.sid}: call {item.call} does not suit {item.mode!r}")
    if view.n_chunk and item.mode is not PrefillMode.SLICED:
        faults.append(f"session {item.sid}: a paused chunk can only be resumed")
    if item.mode is PrefillMode.SLICED and item.n_tokens > state.device.n_ubatch:
        faults.append(f"session {item.sid}: chunk of {item.n_tokens}, n_ubatch is {state.device.n_ubatch}")
    if item.want_logits != (item.n_tokens == n_left):
        faults.append(f"session {item.sid}: logits belong to the prompt's last token alone")
    return faults


def decode_only(state: SchedulerState) -> Plan:
    """The plan that is always sound: one token for every decoding session, nothing else."""
    ready = [s for s in state.sessions if s.phase is Phase.DECODE and s.is_ready][: state.device.n_batch]
    calls = enumerate(by_adapters(state.device, ready))
    items = tuple(
        PlanItem(s.sid, s.seq_id, Phase.DECODE, 1, True, call, "decode_only") for call, alike in calls for s in alike
    )
    return Plan(items=items, memory=state.memory)
