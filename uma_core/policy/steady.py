"""For how many further ticks a finished plan may be carried out again without planning: while streams go on, the next one would be the same.

Rules: pure. Planning costs as much as three ticks of overhead, and what a decode call left of the caches makes it dearer. Whatever may
change the plan ends the repeats: an arrival, an end or a change of phase (the executor sees those), and here the guard's own dates for
background streams that it holds back.
"""

from __future__ import annotations

from uma_core.policy.parts import Parts, parts_of
from uma_core.policy.plan import Plan
from uma_core.policy.stages import latency_guard
from uma_core.policy.state import SchedulerState

STEADY_NS = 250_000_000  # for so long, or so many ticks
STEADY_TICKS = (15, 63)


def n_repeats(state: SchedulerState, plan: Plan) -> int:
    """Chats stream, all of them are served, and nothing else gets anything for now."""
    parts = parts_of(state)
    if not parts.talkers or len(plan.items) != len(parts.talkers) or _is_awaited(parts, plan):
        return 0
    least, most = STEADY_TICKS
    n = min(most, max(least, STEADY_NS // parts.talk_ns))
    return min(n, latency_guard.n_rounds_held(state, plan)) if parts.workers else n


def _is_awaited(parts: Parts, plan: Plan) -> bool:
    return any((parts.waiting, parts.prompts, parts.moving, plan.admit, plan.park))
