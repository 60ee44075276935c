"""Tokens of a prompt as further rows of the streams' own decode call, which reads the weights for both: they ride.

Rules: pure. Only where calibration measured what such rows add (`CostModel.ride`), for prompts that have no chunk in progress, and as
long as chunks in gaps of that length would not read more. (Decodes and pieces of prompts in one batch: Sarathi-Serve, OSDI 2024.)
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.cost import MAX_SPLIT, CostModel
from uma_core.policy.parts import parts_of
from uma_core.policy.state import SchedulerState, SessionView


class Ride(NamedTuple):
    n_tokens: int
    ns: int  # that they add to the streams' own call


def best_ride(state: SchedulerState, view: SessionView, limit_ns: int) -> Ride | None:
    """The most tokens of this prompt that may ride in `limit_ns`; None: none, or a chunk would read more in that time.

    The last one of a new prompt stays: it is a row of the next step, with those that wait for their next token.
    """
    parts, cost = parts_of(state), state.cost
    n_streams = len(parts.talkers)
    if cost.ride is None or view.n_chunk or view.is_embedding or not 0 < n_streams <= MAX_SPLIT or len(cost.splits[n_streams]) != 1:
        return None
    if state.device.one_set_per_call and any(v.adapters != view.adapters for v in parts.talkers):
        return None
    n_most = view.n_left - (not view.n_generated)
    sizes = [rows - n_streams for rows in state.device.ride_rows if rows > n_streams]
    if n_most <= 0 or not sizes:
        return None
    for n in reversed([n for n in sizes if n <= n_most] or [n_most]):
        ns = cost.ride_ns(n_streams, n, view.n_past)
        if ns <= limit_ns:
            pays = n * (parts.talk_ns + limit_ns) >= _n_in_chunks(cost, view, limit_ns) * (parts.talk_ns + ns)
            return Ride(n, ns) if pays else None
    return None


def _n_in_chunks(cost: CostModel, view: SessionView, ns: int) -> float:
    """Tokens that chunks read in this time, at most."""
    size = min(cost.sweet_chunk, view.n_left)
    return min(view.n_left, ns * size / max(1, cost.prefill_ns(size, view.n_past)))
