"""Prefill budget: how much prompt a tick reads when no interactive stream limits it.

Rules with resumable prefill: chunks have the most efficient size, and are cut into pieces short enough for an arriving
chat to wait for. Runs alternate with background streams, or else with transfers. A run lasts a tick budget, or
`interactive_share` of the time if that is longer, since a new request interrupts it at the next piece. Without
streams, it lasts only a tick budget while KV waits to move. Beside an interactive prompt, background streams skip ticks
until their share of the time, 1 - `interactive_share`, is due.
Rules without it: one chunk per prompt and call, in order, while the adaptive token budget lasts. An interactive prompt
beside background streams gets its share of the time all the same, in chunks that fit between their ticks.
"""

from __future__ import annotations

from uma_core.policy.chunks import chunk_limit, efficient, resized
from uma_core.policy.cost.model import CostModel
from uma_core.policy.deadlines import STEPS
from uma_core.policy.index import SessionIndex, index_of, prompt_view, rows_time
from uma_core.policy.plan import Plan, PlanItem, PrefillMode
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Phase, Priority

# Longest piece while no chat streams: an arriving chat waits for its end. With 8 ms TTFT grows by 0.6 %, beside a paste
# on a simulated GPU by 25 %; 2 ms gain nothing.
PIECE_NS = 4_000_000


def run(state: SchedulerState, plan: Plan) -> Plan:
    prompts = plan.prompts
    index = index_of(state)
    if not prompts:
        return plan._replace(transfer_ns=state.config.tick_budget_ns) if index.moving else plan
    if prompts[0].mode is PrefillMode.SLICED:
        return _sliced(state, plan, index, prompts[0])
    return _in_calls(state, plan, index, prompts)


def _sliced(state: SchedulerState, plan: Plan, index: SessionIndex, item: PlanItem) -> Plan:
    view = prompt_view(state, item.sid)
    budget = state.config.tick_budget_ns
    # runs alternate with rounds of the background streams, else with transfers
    period_ns = _share_ns(state, rows_time(state, index.decodes) if plan.decodes else budget)
    if _goes_first(index, view):
        plan, left_ns = _held_back(state, plan, index, period_ns)
        run_ns = left_ns if left_ns > 0 else period_ns
    elif not plan.decodes and (index.moving or plan.restore):  # KV waits for the end of the run
        run_ns = budget
    else:
        run_ns = max(budget, period_ns)
    # beside a chat the guard chooses the size
    if not view.n_chunk and not (index.round_ns and "latency_guard" in state.config.stages):
        item = resized(item, view, _bearable(state, view, chunk_limit(state)))
    # deep in a context a piece may be longer than any run
    is_coarse = state.cost.piece_ns(item.n_tokens, view.n_past) > run_ns
    return plan._replace(
        items=(*plan.decodes, item),
        run_ns=run_ns,
        quantum_ns=min(PIECE_NS, run_ns),
        min_pieces=int(is_coarse),
        transfer_ns=budget,
    )


def _share_ns(state: SchedulerState, others_ns: int) -> int:
    """A prompt's time beside other work of `others_ns`: `interactive_share` of the sum."""
    share = state.config.interactive_share
    return int(others_ns * share / (1.0 - share))


def _goes_first(index: SessionIndex, view: SessionView) -> bool:
    """Whether the prompt is interactive, and all streams are background streams."""
    return bool(index.background) and not index.interactive and view.priority is Priority.INTERACTIVE


def _held_back(state: SchedulerState, plan: Plan, index: SessionIndex, period_ns: int) -> tuple[Plan, int]:
    """Return the plan without the background streams' rows until `period_ns` after their last tokens, and how much of
    that time is left.
    """
    left_ns = max(v.t_last_ns for v in index.background) + period_ns - state.now_ns
    if left_ns <= 0:
        return plan, left_ns
    plan = plan._replace(items=plan.prompts)
    note = f"prefill_budget: background streams wait for an interactive prompt, {left_ns / 1e6:.1f} ms more"
    return plan.note(note), left_ns


def _within(cost: CostModel, n_past: int, ns: int) -> int:
    """The largest chunk that takes at most `ns`, else the smallest."""
    return max([k for k in cost.chunks if cost.prefill_ns(k, n_past) <= ns] or [cost.chunks[0]])


def _bearable(state: SchedulerState, view: SessionView, limit: int) -> int:
    """The efficient chunk size. With one prefill slot or none, an arriving chat waits for the end of a background
    chunk, so that chunk takes at most half of the time in which a short prompt's first token is due.
    """
    config, cost = state.config, state.cost
    n = efficient(cost, view, limit)
    if state.device.n_prefill_slots > 1 or view.priority is Priority.INTERACTIVE:
        return n
    wanted = (config.slo_ttft_ns or STEPS * cost.solo_step_ns(0)) // 2
    return min(n, _within(cost, view.n_past, wanted))


def _in_calls(state: SchedulerState, plan: Plan, index: SessionIndex, prompts: tuple[PlanItem, ...]) -> Plan:
    """Size chunks in order until the token budget is used up; the first prompt always gets one."""
    learned = budget = _tokens(state)
    kept: list[PlanItem] = []
    first = prompt_view(state, prompts[0].sid)
    if _goes_first(index, first):
        period_ns = _share_ns(state, rows_time(state, index.decodes))
        plan, _ = _held_back(state, plan, index, period_ns)
        budget = max(budget, _within(state.cost, first.n_past, period_ns))
    n_left = n_most = budget if index.decodes else state.device.n_batch
    for item in prompts:
        view = prompt_view(state, item.sid)
        is_behind_a_chat = view.priority is Priority.BACKGROUND and first.priority is Priority.INTERACTIVE
        if n_left <= 0 or is_behind_a_chat:
            break
        n = _bearable(state, view, min(item.n_tokens, n_left, chunk_limit(state)))
        kept.append(resized(item, view, n))
        n_left -= n
    if len(kept) < len(prompts):
        why = f" fit {n_most} tokens" if n_left <= 0 else ": background ones wait for a chat's"
        plan = plan.note(f"prefill_budget: {len(kept)} of {len(prompts)} prompts{why}")
    plan = plan._replace(items=plan.decodes + tuple(kept), transfer_ns=state.config.tick_budget_ns)
    return plan.remember(prefill_budget=learned)


def _tokens(state: SchedulerState) -> int:
    """Adapt the token budget to the last tick's measured time, so that a tick lasts about `tick_budget_ns`."""
    config, n = state.config, state.memory.prefill_budget or state.config.start_target_tokens
    if any(r.phase is Phase.PREFILL for r in state.reports):
        spent = sum(r.elapsed_ns for r in state.reports)
        if spent > config.tick_budget_ns:
            n = n * 3 // 4
        elif spent < config.tick_budget_ns * 3 // 4:
            n = n * 5 // 4 + 1
    cost, n_most = state.cost, state.device.n_batch
    # at least two steps' worth of tokens: if one step exceeds the tick budget, fewer tokens would only mean more steps
    two_ns = 2 * cost.solo_step_ns(0)
    return max(1, min(n, n_most), *(k for k in cost.chunks if k <= n_most and cost.prefill_ns(k, 0) <= two_ns))
