"""Decode rows as plan items: one token each, grouped into the cheapest calls."""

from __future__ import annotations

from uma_core.policy.cost.model import NOISE
from uma_core.policy.index import rows_time
from uma_core.policy.plan import PlanItem
from uma_core.policy.state import SchedulerState, SessionView, sharing
from uma_core.types import Phase


def is_shared(both_ns: int, apart_ns: int) -> bool:
    """Whether interactive and background rows share a call. A shared call delays the interactive token, so it must
    save more time than measurements vary by.
    """
    return both_ns * NOISE < apart_ns


def decode_items(
    state: SchedulerState, interactive: list[SessionView], background: list[SessionView]
) -> tuple[PlanItem, ...]:
    """Decode items in calls numbered from 0. Interactive rows have the first calls, unless a shared call is cheaper."""
    if not (interactive and background):
        return _grouped(state, interactive or background, 0, "interactive" if interactive else "background")
    both = interactive + background
    if is_shared(rows_time(state, both), rows_time(state, interactive) + rows_time(state, background)):
        return _grouped(state, both, 0, "shared call")
    first = _grouped(state, interactive, 0, "interactive")
    return first + _grouped(state, background, first[-1].call + 1, "background")


def _grouped(state: SchedulerState, views: list[SessionView], first_call: int, reason: str) -> tuple[PlanItem, ...]:
    calls: list[list[SessionView]] = []
    for group in sharing(state.device, views):
        for size in state.cost.call_sizes(len(group), state.device.n_batch):
            calls.append(group[:size])
            group = group[size:]
    return tuple(
        PlanItem(v.sid, v.seq_id, Phase.DECODE, 1, True, call, reason)
        for call, rows in enumerate(calls, first_call)
        for v in rows
    )
