"""Decode first: one token for every decoding session, grouped into the cheapest calls.

Rules: interactive sessions are always served, in the first calls. Background sessions are served up to a cap
(knobs, the sweet spot's present choice, the MoE cap beside a chat); the rest rotate: clients with less
virtual time first, then round robin, in bursts of the sweet spot's length.
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.parts import Parts, parts_of, rows_time
from uma_core.policy.plan import Plan, PlanItem
from uma_core.policy.rank import FAIR_QUANTUM_NS, virtual_times
from uma_core.policy.state import SchedulerState, SessionView, by_adapters
from uma_core.types import Phase

NAME = "decode_first"
TALKERS = "interactive"  # reason of rows in calls that hold interactive rows only
JOIN_GAIN = 0.97  # lanes share a call only if that saves 3 %: it delays the interactive token


class Rotation(NamedTuple):
    """Background sessions served in the present burst, in order of their turns."""

    sids: tuple[int, ...]
    n_ticks: int


def run(state: SchedulerState, plan: Plan) -> Plan:
    parts = parts_of(state)
    if plan.park:
        parts = parts._replace(workers=[v for v in parts.workers if v.sid not in plan.park])
    if not parts.talkers and not parts.workers:
        return plan
    workers, rotation = _served(state, parts)
    items = decode_items(state, parts.talkers, workers)
    carry = plan.carry
    if rotation != carry.get(NAME):
        carry = {**carry, NAME: rotation}
    notes = plan.notes
    if len(workers) < len(parts.workers):
        notes = (*notes, f"decode_first: {len(workers)} of {len(parts.workers)} background streams served")
    return plan._replace(items=plan.items + items, carry=carry, notes=notes)


def decode_items(state: SchedulerState, talkers: list[SessionView], workers: list[SessionView]) -> tuple[PlanItem, ...]:
    """Items of one token each; calls numbered from 0, interactive ones first unless a shared call is cheaper."""
    if talkers and workers:
        parts = parts_of(state)
        both = parts.decoders if workers is parts.workers and talkers is parts.talkers else talkers + workers
        if rows_time(state, both) < JOIN_GAIN * (rows_time(state, talkers) + rows_time(state, workers)):
            return _grouped(state, both, 0, "shared call")
        first = _grouped(state, talkers, 0, TALKERS)
        return first + _grouped(state, workers, first[-1].call + 1, "background")
    return _grouped(state, talkers, 0, TALKERS) if talkers else _grouped(state, workers, 0, "background")


def _grouped(state: SchedulerState, views: list[SessionView], first_call: int, reason: str) -> tuple[PlanItem, ...]:
    items: tuple[PlanItem, ...] = ()
    for alike in by_adapters(state.device, views):
        items += _alike(state, alike, items[-1].call + 1 if items else first_call, reason)
    return items


def _alike(state: SchedulerState, views: list[SessionView], first_call: int, reason: str) -> tuple[PlanItem, ...]:
    device = state.device
    if len(views) == 1:
        v = views[0]
        return (PlanItem(v.sid, v.seq_id, Phase.DECODE, 1, True, first_call, reason),)
    views = sorted(views, key=lambda v: v.seq_id)
    groups = state.cost.best_groups([v.seq_id for v in views], device.can_mix_rows, device.n_batch)
    turns = [(views[i], call) for call, group in enumerate(groups, first_call) for i in group]
    return tuple([PlanItem(v.sid, v.seq_id, Phase.DECODE, 1, True, call, reason) for v, call in turns])


def in_turn(views: list[SessionView], cursor: int) -> list[SessionView]:
    """Round robin by session number, beginning after `cursor`. (Times of last tokens tie within a call: no order to rotate by.)"""
    return sorted(views, key=lambda v: (v.sid <= cursor, v.sid))


def _cap(state: SchedulerState, parts: Parts) -> tuple[int, int]:
    """Most background sessions to serve, and the burst length."""
    knobs = state.knobs
    cap, burst = len(parts.workers), 1
    spot = state.carry.get("sweet_spot")
    if spot is not None and "sweet_spot" in knobs.stages:
        burst = spot.burst  # type: ignore[attr-defined]
        if spot.n_served:  # type: ignore[attr-defined]
            cap = min(cap, spot.n_served)  # type: ignore[attr-defined]
    if knobs.max_background_decoders:
        cap = min(cap, knobs.max_background_decoders)
    if parts.talkers and state.device.n_expert:
        cap = min(cap, knobs.moe_max_decoders)
    return cap, burst


def _served(state: SchedulerState, parts: Parts) -> tuple[list[SessionView], Rotation | None]:
    """Background sessions of this tick, and the rotation to remember (None: everybody is served)."""
    workers = parts.workers
    cap, burst = _cap(state, parts)
    if cap >= len(workers):
        return workers, None
    memory = state.carry.get(NAME)
    if isinstance(memory, Rotation) and memory.n_ticks < burst and len(memory.sids) == cap:
        again = [v for v in workers if v.sid in memory.sids]
        if len(again) == cap:
            return again, Rotation(memory.sids, memory.n_ticks + 1)
    charged = virtual_times(state)
    least = min(charged.values(), default=0)
    ordered = in_turn(workers, memory.sids[-1] if isinstance(memory, Rotation) else -1)
    if charged:
        ordered.sort(key=lambda v: (charged.get(v.client, least) - least) // FAIR_QUANTUM_NS)
    chosen = ordered[:cap]
    return chosen, Rotation(tuple(v.sid for v in chosen), 1)
