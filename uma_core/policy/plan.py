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
    by_sid, device = {s.sid: s for s in state.sessions}, state.device
    seqs = {a.sid: a.seq_id for a in plan.admit}
    planned = {item.sid for item in plan.items}
    calls: dict[int, list[PlanItem]] = {}
    for item in plan.items:
        calls.setdefault(item.call, []).append(item)
    unknown = (seqs.keys() | planned | {*plan.restore, *dict(plan.drafting)}) - by_sid.keys()
    if unknown:
        return [f"no sessions: {sorted(unknown)}"]
    sliced = calls.pop(-1, [])
    waiting = Phase.QUEUED, Phase.PARKED
    times = plan.run_ns, plan.quantum_ns, plan.min_pieces, plan.transfer_ns, plan.drafting_ns
    rules = {
        "waiting sessions are admitted": all(by_sid[sid].phase in waiting for sid in seqs),
        "each to a free sequence of its own": len({*seqs.values()} & {*device.free_seqs}) == len(plan.admit),
        "a session is planned once": len(planned) == len(plan.items),
        "one prompt at most is sliced": len(sliced) <= (device.n_prefill_slots > 0),
        "nothing else is done with what is restored": all(_is_idle(by_sid[sid], seqs, planned) for sid in plan.restore),
        "drafts are wanted": all(sid in planned and 1 <= n <= len(by_sid[sid].draft_rates) for sid, n in plan.drafting),
        "no time is negative": min(times) >= 0,
    }
    faults = _broken("the plan", rules)
    for item in plan.items:
        view = by_sid[item.sid]
        faults += _broken(item, _item_rules(view, item, seqs.get(item.sid, view.seq_id), device))
    for items in calls.values():
        faults += _broken(items, _call_rules(items, by_sid, device))
    return faults


def _is_idle(view: SessionView, admitted: Mapping[int, int], planned: set[int]) -> bool:
    is_here = view.sid in admitted or view.phase is Phase.PREFILL
    return is_here and view.sid not in planned and view.is_ready and not view.n_chunk


def _broken(what: object, rules: dict[str, bool]) -> list[str]:
    if all(rules.values()):  # nearly always
        return []
    return [f"{what} breaks the rule: {rule}" for rule, holds in rules.items() if not holds]


def _item_rules(view: SessionView, item: PlanItem, seq_id: int, device: DeviceView) -> dict[str, bool]:
    if item.phase is Phase.DECODE:
        return {
            "the session's own sequence": item.seq_id == seq_id >= 0,
            "a session that decodes": view.is_ready and view.phase is Phase.DECODE,
            "one token, and at most all drafts": 1 <= item.n_tokens <= 1 + len(view.survival),
            "logits, in a decode call": item.want_logits and item.call >= 0 and item.mode is None,
        }
    is_sliced = item.mode is PrefillMode.SLICED
    return {
        "the session's own sequence": item.seq_id == seq_id >= 0,
        "a prompt, in one of three ways": view.is_ready and item.phase is Phase.PREFILL and item.mode is not None,
        "tokens that are left": 1 <= item.n_tokens <= view.n_left,
        "a paused chunk is resumed whole": not view.n_chunk or (is_sliced and item.n_tokens == view.n_chunk),
        "a call of its own only if not sliced": (item.call < 0) == is_sliced,
        "slices of an ubatch": not is_sliced or item.n_tokens <= device.n_ubatch,
        "logits of the prompt's last token alone": item.want_logits == (item.n_tokens == view.n_left),
    }


def _call_rules(items: list[PlanItem], by_sid: dict[int, SessionView], device: DeviceView) -> dict[str, bool]:
    n_rows = sum([i.n_tokens for i in items])
    has_drafts = any(i.phase is Phase.DECODE and i.n_tokens > 1 for i in items)
    return {
        "n_batch tokens at most": n_rows <= device.n_batch,
        "n_verify_rows with drafts": not has_drafts or n_rows <= device.n_verify_rows,
        "one adapter set": not device.one_set_per_call or len({by_sid[i.sid].adapters for i in items}) == 1,
    }


def decode_only(state: SchedulerState) -> Plan:
    """The plan that is always sound: one token for every decoding session, nothing else."""
    ready = [s for s in state.sessions if s.phase is Phase.DECODE and s.is_ready][: state.device.n_batch]
    calls = enumerate(by_adapters(state.device, ready))
    items = tuple(
        PlanItem(s.sid, s.seq_id, Phase.DECODE, 1, True, call, "decode_only") for call, alike in calls for s in alike
    )
    return Plan(items=items, memory=state.memory)
