"""For how many further ticks a finished plan may be repeated: while streams go on, the next plan would be the same.

Rules: pure. Planning takes 0.1 ms at 16 sequences, which is 2.5 % of a GPU's step, and it keeps the engine from
computing ahead. Whatever may change the plan ends the repeats: an arrival, an end or a change of phase (the executor
checks for these), or the round in which a prompt or a background stream that the guard holds back may be served
(checked here).
"""

from __future__ import annotations

from uma_core.policy.index import index_of
from uma_core.policy.order import FAIR_QUANTUM_NS
from uma_core.policy.plan import Plan
from uma_core.policy.stages.latency_guard import n_rounds_held
from uma_core.policy.state import SchedulerState


def n_repeats(state: SchedulerState, plan: Plan) -> int:
    """Further ticks for this plan; 0 unless chats stream, all of them are served, and nothing else gets anything."""
    index = index_of(state)
    has_drafts = bool(plan.drafting) or any(item.n_tokens > 1 for item in plan.items)
    is_awaited = has_drafts or any((index.waiting, index.moving, plan.admit, plan.park))
    if not index.interactive or len(plan.items) != len(index.interactive) or is_awaited:
        return 0
    # charges of this time change no order, and limits are as old as their plan
    n_most = FAIR_QUANTUM_NS // index.round_ns
    return min(n_most, n_rounds_held(state, plan)) if index.background or index.prompts else n_most
