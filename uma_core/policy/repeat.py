"""How many further ticks may repeat a finished plan: while the same streams continue, the next plan would be the same.

Rules: pure. Planning takes 0.1 ms at 16 sequences, which is 2.5 % of a GPU's step, and it keeps the engine from
computing ahead. Repeats end with whatever may change the plan: a session that arrives, ends or changes its phase (the
executor checks these), or the round in which a prompt or background stream that the guard holds back may be served
(checked here).
"""

from __future__ import annotations

from math import ceil

from uma_core.policy.deadlines import is_first_awaited
from uma_core.policy.index import index_of
from uma_core.policy.order import FAIR_QUANTUM_NS, n_rounds_without
from uma_core.policy.plan import Plan
from uma_core.policy.state import SchedulerState
from uma_core.policy.tbt.controller import LONG_GAP
from uma_core.policy.tbt.limits import RARELY


def n_repeats(state: SchedulerState, plan: Plan) -> int:
    """How many further ticks may repeat this plan; 0 unless it serves all streaming chats and nothing else."""
    index = index_of(state)
    serves_chats_alone = index.interactive and len(plan.items) == len(index.interactive)
    has_drafts = plan.drafting or any(item.n_tokens > 1 for item in plan.items)
    if not serves_chats_alone or has_drafts or any((index.waiting, index.moving, plan.admit, plan.park)):
        return 0
    # one quantum at most: within it, charges change no order, and the plan's limits do not grow old
    n_most = FAIR_QUANTUM_NS // index.round_ns
    return min(n_most, _n_rounds_held(state, plan)) if index.background or index.prompts else n_most


def _n_rounds_held(state: SchedulerState, plan: Plan) -> int:
    """For how many further rounds this plan's prompts and background streams stay held back.

    They stay so until a long gap may be spent or one of them starves. 0 if the plan has work for them, if a prompt's
    deadline may grant it more at any time, or if the latency guard did not run.
    """
    if plan.guard is None or plan.guard.kind != "nothing":
        return 0
    index, memory, config = index_of(state), plan.memory.latency_guard, state.config
    if index.prompts and (not plan.guard.holds_prompt or any(map(is_first_awaited, index.prompts))):
        return 0
    waited = [(state.now_ns - view.t_progress_ns) // index.round_ns for view in index.prompts]  # rounds
    if index.background:
        waited.append(n_rounds_without(state, index.background, memory.forced_tick))
    # the next plan finds out whether a session starves after one bound or after RARELY bounds
    until = [config.starvation_ticks * times - n for n in waited for times in (1, RARELY)]
    n_rounds = min((n for n in until if n > 0), default=1)
    if config.long_tick_share and memory.credit < LONG_GAP:
        n_rounds = min(n_rounds, ceil((LONG_GAP - memory.credit) / config.long_tick_share))
    return n_rounds - 1
