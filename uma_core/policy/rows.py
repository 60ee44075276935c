"""Decode rows as plan items: one token each, grouped into the cheapest calls."""

from __future__ import annotations

from uma_core.policy.cost.model import NOISE
from uma_core.policy.index import rows_time
from uma_core.policy.plan import PlanItem
from uma_core.policy.state import SchedulerState, SessionView, sharing
from uma_core.types import Phase


def added_ns(state: SchedulerState, interactive: list[SessionView], background: list[SessionView]) -> tuple[int, bool]:
    """Time that background rows add to the interactive ones' round, and whether they share calls with them.

    A shared call delays the interactive token, so it must save more time than measurements vary by.
    """
    own, alone = rows_time(state, interactive), rows_time(state, background)
    both = rows_time(state, interactive + background)
    is_shared = both * NOISE < own + alone
    return both - own if is_shared else alone, is_shared


def decode_items(
    state: SchedulerState, interactive: list[SessionView], background: list[SessionView]
) -> tuple[PlanItem, ...]:
    """Decode items in calls numbered from 0. Interactive rows have the first calls, unless a shared call is cheaper."""
    if not (interactive and background):
        return _grouped(state, interactive or background, 0, "interactive" if interactive else "background")
    if added_ns(state, interactive, background)[1]:
        return _grouped(state, interactive + background, 0, "shared call")
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
