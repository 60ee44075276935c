"""For how many further ticks a finished plan may be carried out again without planning: while streams go on, the next
one would be the same.

Rules: pure. Planning takes 0.1 ms at 16 sequences, which is 2.5 % of a GPU's step, and it keeps the engine from
computing ahead. Whatever may change the plan ends the repeats: an arrival, an end or a change of phase (the executor
sees those), and here the dates of background streams that the guard holds back.
"""

from __future__ import annotations

from uma_core.policy.index import index_of
from uma_core.policy.plan import Plan
from uma_core.policy.state import SchedulerState
from uma_core.policy.tbt.share import n_rounds_held

STEADY_NS = 250_000_000  # a plan holds for so long ...
# ... but for 15 ticks at least, so that planning is rare where a step takes long too (what is measured is booked
# meanwhile), and for 63 at most: what the first ones teach shall count soon where a step is a fraction of a ms.
STEADY_TICKS = (15, 63)


def n_repeats(state: SchedulerState, plan: Plan) -> int:
    """Chats stream, all of them are served, and nothing else gets anything for now."""
    index = index_of(state)
    has_drafts = bool(plan.drafting) or any(item.n_tokens > 1 for item in plan.items)
    is_awaited = has_drafts or any((index.waiting, index.prompts, index.moving, plan.admit, plan.park))
    if not index.interactive or len(plan.items) != len(index.interactive) or is_awaited:
        return 0
    least, most = STEADY_TICKS
    n = min(most, max(least, STEADY_NS // index.round_ns))
    return min(n, n_rounds_held(state, plan)) if index.background else n
