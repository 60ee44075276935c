"""Who goes first: one ordering for admission and for prompts.

Order: lane, then clients that have had less than their share, then (of those who wait) clients that hold fewer sequences, then
least remaining work, with aging. A client that asks one thing after the other has no account while it asks nothing, so its virtual
time tells nothing: by what it holds it comes before another client's whole queue.
Aging makes two promises. A background session that saw no progress for `aging_ns` ranks as interactive.
And work shrinks by AGE_RATE of the time waited, so that nobody is overtaken by requests that arrive later
than work / AGE_RATE after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Lane

AGE_RATE = 0.1
FAIR_QUANTUM_NS = 500_000_000  # clients whose virtual times differ by less count as equal; SRPT decides between them

Key = Callable[[SessionView], tuple[int, int, int, float, int]]


def virtual_times(state: SchedulerState) -> Mapping[int, int]:
    """Measured ns charged to each client so far; empty while one client is alone (see stages/fairness.py)."""
    memory = state.carry.get("fairness")
    return memory.counters if memory is not None else {}  # type: ignore[attr-defined]


def urgency_key(state: SchedulerState) -> Key:
    """Sort key of waiting sessions and prompts: lane, fairness, remaining uncached prefill time less aging, arrival."""
    now, aging, token_ns = state.now_ns, state.knobs.aging_ns, state.cost.token_ns
    charged = virtual_times(state)
    least = min(charged.values(), default=0)
    held: dict[int, int] = {}
    if charged:
        for s in state.sessions:
            held[s.client] = held.get(s.client, 0) + (s.seq_id >= 0)

    def key(v: SessionView) -> tuple[int, int, int, float, int]:
        idle = now - v.t_progress_ns
        n_held = held.get(v.client, 0) if v.seq_id < 0 and idle <= aging else 0
        lane = Lane.INTERACTIVE if idle > aging else v.lane
        share = (charged.get(v.client, least) - least) // FAIR_QUANTUM_NS if charged else 0
        n_left = v.n_prompt - max(v.n_past, v.cached_hint)
        work = (n_left - v.chunk_fraction * v.n_chunk) * token_ns if n_left > 0 else 0.0
        return lane, share, n_held, work + v.restore_ns - AGE_RATE * (now - v.t_queued_ns), v.sid

    return key
