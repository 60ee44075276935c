"""How much of a prompt is read at once, for all three ways to feed it (`PrefillMode`).

A chunk has one of the cost model's legal sizes, with two exceptions: the end of a prompt, and an overdue prompt's
OWN_CALL chunk if even the longest gap has no room for the smallest legal size. That chunk would have to be forced.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from uma_core.policy.cost.model import MAX_ROWS, CostModel
from uma_core.policy.index import index_of
from uma_core.policy.plan import PlanItem, PrefillMode
from uma_core.policy.state import SchedulerState, SessionView


class Room(NamedTuple):
    """Time that other work may take in a stream's gap."""

    in_everyday_ns: int
    in_long_ns: int
    is_most: bool = False  # no later gap of this prompt will have more room


def sized(state: SchedulerState, item: PlanItem, view: SessionView, room: Room) -> tuple[PlanItem, int]:
    """Return the prefill item with a chunk sized for the room, and the least time that this chunk takes of one gap.

    That time is one piece (SLICED), the whole call (OWN_CALL), or what the rows add to the streams' call (MIXED). If it
    exceeds the room, the chunk is the smallest possible, or it is already in progress. An item planned as SLICED
    becomes MIXED where that reads more. MIXED rows always fit `room.in_everyday_ns`; only chunks may need a long gap.
    """
    cost = state.cost
    if item.mode is PrefillMode.OWN_CALL:
        n = _own_call_size(cost, item, view, room)
        return resized(item, view, n), cost.prefill_ns(n, view.n_past)
    if rows := mixed_rows(state, view, room.in_everyday_ns):
        return resized(item, view, rows[0])._replace(mode=PrefillMode.MIXED), rows[1]
    n = view.n_chunk or _sliced_size(state, view, room)
    return resized(item, view, n), cost.piece_ns(n, view.n_past)


def resized(item: PlanItem, view: SessionView, n_tokens: int) -> PlanItem:
    """The same prefill item with another chunk length."""
    return item if n_tokens == item.n_tokens else item._replace(n_tokens=n_tokens, want_logits=n_tokens == view.n_left)


def chunk_limit(state: SchedulerState) -> int:
    """The most tokens that the device and the configuration allow in a chunk."""
    return max(1, min(state.device.n_ubatch, state.config.prefill_burst))


def mixed_rows(state: SchedulerState, view: SessionView, limit_ns: int) -> tuple[int, int] | None:
    """The most tokens of this prompt that the streams' own call can take in `limit_ns`, and the time that they add.

    None if the streams and this prompt cannot share a call, if no token fits, or if a chunk would read more in that
    time. (Decodes and prompts in one batch: Sarathi-Serve, OSDI 2024.) Calibration must have measured mixed calls, and
    the prompt must have no chunk in progress. A new prompt's last token is left out: it becomes a decode row of the
    next step, like the last token of every stream. A prompt of one token is such a row at once.
    """
    index, cost = index_of(state), state.cost
    n_streams = len(index.interactive)
    if cost.mixed is None or view.n_chunk or view.is_embedding:
        return None
    if not 0 < n_streams <= MAX_ROWS or len(cost.splits[n_streams]) != 1:
        return None
    if state.device.one_set_per_call and any(v.adapters != view.adapters for v in index.interactive):
        return None
    n_most = view.n_left - (view.n_left > 1 and not view.n_generated)
    sizes = [rows - n_streams for rows in state.device.mixed_rows if rows > n_streams]
    if not sizes:
        return None
    for n in reversed([n for n in sizes if n <= n_most] or [n_most]):
        ns = cost.mixed_ns(n_streams, n, view.n_past)
        if ns <= limit_ns:
            size = min(cost.sweet_chunk, view.n_left)
            in_chunks = min(view.n_left, limit_ns * size / max(1, cost.prefill_ns(size, view.n_past)))
            return (n, ns) if n * (index.round_ns + limit_ns) >= in_chunks * (index.round_ns + ns) else None
    return None


def _own_call_size(cost: CostModel, item: PlanItem, view: SessionView, room: Room) -> int:
    """The largest size that fits, else the smallest. If no later gap has room for it either, as many tokens as fit."""
    sizes = [n for n in (*cost.chunks, item.n_tokens) if n <= item.n_tokens]
    if fitting := [n for n in sizes if cost.prefill_ns(n, view.n_past) <= room.in_everyday_ns]:
        return max(fitting)
    least = min(sizes)
    if not room.is_most:
        return least
    return bisect_right(range(1, least), room.in_everyday_ns, key=lambda n: cost.prefill_ns(n, view.n_past)) or least


def _candidates(cost: CostModel, n_left: int, limit: int) -> list[int]:
    """Legal sizes within the limit, and the whole rest of the prompt if that is within the limit. Never empty."""
    top = min(n_left, limit)
    sizes = [n for n in cost.chunks if n <= top]
    return [*sizes, top] if top not in sizes and (top == n_left or not sizes) else sizes


def efficient(cost: CostModel, view: SessionView, limit: int) -> int:
    """The chunk size when no stream's gap is affected: the largest whose time per token is within 1 % of the least."""
    sizes = _candidates(cost, view.n_left, limit)
    times = [_token_ns(cost, n, view.n_past, min(view.n_left, limit)) for n in sizes]
    return max(n for n, ns in zip(sizes, times, strict=True) if ns <= 1.01 * min(times))


def _sliced_size(state: SchedulerState, view: SessionView, room: Room) -> int:
    """The chunk size that reads the most tokens per gap. A gap holds whole pieces only, so a larger, more efficient
    chunk may progress more slowly than a small one.
    """
    cost, limit, long_share = state.cost, chunk_limit(state), state.config.long_tick_share
    sizes = _candidates(cost, view.n_left, limit)
    best, best_rate = 0, 0.0
    for n in sizes:
        piece = max(1, cost.piece_ns(n, view.n_past))
        n_everyday, n_long = room.in_everyday_ns // piece, room.in_long_ns // piece
        used = ((1.0 - long_share) * n_everyday + long_share * n_long) * piece
        rate = used / max(1.0, _token_ns(cost, n, view.n_past, min(view.n_left, limit)))
        if rate > best_rate * 1.01:
            best, best_rate = n, rate
    return best or min(sizes)


def _token_ns(cost: CostModel, n: int, n_past: int, span: int) -> float:
    """Mean time per token if `span` tokens are read in chunks of `n`: later chunks have a longer context."""
    return cost.prefill_ns(n, n_past + (span - n) // 2) / n
