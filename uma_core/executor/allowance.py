"""How long a tick, and the gap between two tokens of a chat, may be: what status and metrics judge by.

Rules: pure; the limits are those of the policy's options, with the guard switched off too: then they tell what its absence costs.
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.gaps import gap_limits
from uma_core.policy.parts import Parts, parts_of, rows_time
from uma_core.policy.plan import Plan
from uma_core.policy.state import SchedulerState
from uma_core.types import Phase


class Allowance(NamedTuple):
    """Nanoseconds; 0: nothing limits it."""

    gap_ns: int = 0  # promised to interactive streams without a target of their own
    tick_ns: int = 0


def allowance(state: SchedulerState, plan: Plan, overhead_ns: float = 0.0) -> Allowance:
    """Of the tick that carries out this plan. `overhead_ns`: what typically passes between two decode calls.

    A stream is promised `guard_cap` times the gap that it would have with the interactive streams alone: their decode round, what
    passes between its calls, and the noise that decode calls have on this machine.
    The tick, with a chat: the everyday gap, or what the guard let in beyond it (a long gap on credit, an urgent prompt).
    With background streams only: the tick budget, or what their decode round and the planned prompt run need.
    With nobody decoding nothing waits for the tick's end: a new request rings it off.
    """
    parts = parts_of(state)
    if parts.talk_ns:
        limit_ns = gap_limits(state, parts).cap_ns
        return Allowance(_promised_ns(state, plan, parts, overhead_ns), max(limit_ns, parts.talk_ns + plan.run_ns))
    if not any(item.phase is Phase.DECODE for item in plan.items):
        return Allowance()
    return Allowance(0, max(state.knobs.tick_budget_ns, rows_time(state, parts.decoders) + plan.run_ns))


def _promised_ns(state: SchedulerState, plan: Plan, parts: Parts, overhead_ns: float) -> int:
    streams = {view.sid for view in parts.talkers}
    n_calls = len({item.call for item in plan.items if item.sid in streams})
    alone = parts.talk_ns + n_calls * overhead_ns
    noise = plan.guard.noise if plan.guard is not None else 0.0
    return max(state.knobs.guard_floor_ns, int(state.knobs.guard_cap * (1.0 + noise) * alone))
