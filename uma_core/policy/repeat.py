"""How many further ticks may repeat a finished plan: while the same streams continue, the next plan would be the same.

Rules: pure. Planning takes 0.1 ms at 16 sequences, which is 2.5 % of a GPU's step, and it keeps the engine from
computing ahead. Repeats end with whatever may change the plan: a session that arrives, ends or changes its phase (the
executor checks these), or the round in which a prompt or background stream that the guard holds back may be served
(checked here).
"""

from __future__ import annotations

from uma_core.policy.index import index_of
from uma_core.policy.order import FAIR_QUANTUM_NS
from uma_core.policy.plan import Plan
from uma_core.policy.stages.latency_guard import n_rounds_held
from uma_core.policy.state import SchedulerState


def n_repeats(state: SchedulerState, plan: Plan) -> int:
    """How many further ticks may repeat this plan; 0 unless it serves all streaming chats and nothing else."""
    index = index_of(state)
    has_drafts = bool(plan.drafting) or any(item.n_tokens > 1 for item in plan.items)
    is_awaited = has_drafts or any((index.waiting, index.moving, plan.admit, plan.park))
    if not index.interactive or len(plan.items) != len(index.interactive) or is_awaited:
        return 0
    # one quantum at most: within it, charges change no order, and the plan's limits do not grow old
    n_most = FAIR_QUANTUM_NS // index.round_ns
    return min(n_most, n_rounds_held(state, plan)) if index.background or index.prompts else n_most
