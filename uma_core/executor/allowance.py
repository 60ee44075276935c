"""How long a tick, and the gap between two tokens of a chat, may be: what status and metrics judge by.

Rules: pure; the limits are the policy's own, with the guard switched off too: then they tell what its absence costs.
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.gaps import gap_limits
from uma_core.policy.parts import parts_of, rows_time
from uma_core.policy.plan import Plan
from uma_core.policy.state import SchedulerState
from uma_core.types import Phase


class Allowance(NamedTuple):
    """Nanoseconds; 0: nothing limits it."""

    gap_ns: int = 0  # everyday gap of the interactive streams
    tick_ns: int = 0


def allowance(state: SchedulerState, plan: Plan) -> Allowance:
    """Of the tick that carries out this plan.

    With a chat: the everyday gap, or what the guard let in beyond it (a long gap on credit, an urgent prompt).
    With background streams only: the tick budget, or what their decode round and the planned prompt run need.
    With nobody decoding nothing waits for the tick's end: a new request rings it off.
    """
    parts = parts_of(state)
    if parts.talk_ns:
        gap_ns = gap_limits(state, parts).cap_ns
        return Allowance(gap_ns, max(gap_ns, parts.talk_ns + plan.run_ns))
    if not any(item.phase is Phase.DECODE for item in plan.items):
        return Allowance()
    return Allowance(0, max(state.knobs.tick_budget_ns, rows_time(state, parts.decoders) + plan.run_ns))
