"""ΣBMT guard (bytes moved through memory per tick): keeps them within bandwidth budget x time.

Rules: the time is the tick budget, or the prompt run or one step where that is longer. Over budget, prompt work is cut
first, then background rows (those served most recently); an interactive prompt that cannot pause stays where these rows
make room for it, or it would wait until they end. Interactive rows stay, and so does the last piece of work in a tick:
the guard slows things down, it never stops them. With the budget off it only makes the estimate.
"""

from __future__ import annotations

from uma_core.policy import traffic
from uma_core.policy.index import prompt_view, views_of
from uma_core.policy.plan import Plan, PlanItem, PrefillMode
from uma_core.policy.rows import decode_items
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Phase, Priority


def run(state: SchedulerState, plan: Plan) -> Plan:
    if not plan.items:
        return plan
    budget, moved = _budget(state, plan), _estimate(state, plan)
    why = f"{sum(moved) / 1e6:.0f} MB > {budget / 1e6:.0f}"
    is_forced = plan.guard is not None and plan.guard.kind == "forced"
    for cut in (_fewer_rows,) if is_forced else (_for_interactive_prompts, _less_prompt, _fewer_rows):
        if budget and sum(moved) > budget:
            plan = cut(state, plan, budget, why)
            moved = _estimate(state, plan)
    return plan._replace(bmt_bytes=sum(moved), bmt_budget=budget)


def _budget(state: SchedulerState, plan: Plan) -> int:
    """Bytes for this tick; 0: unlimited."""
    rate = state.config.bmt_budget
    if rate < 0:
        rate = traffic.measured_bandwidth(state.device, state.cost.solo_step_ns(0))
    return int(rate * max(state.config.tick_budget_ns, plan.run_ns, _step_ns(state, plan))) if rate else 0


def _step_ns(state: SchedulerState, plan: Plan) -> int:
    """Of one planned stream alone: where that exceeds a tick's time, a tick's bytes would not do for any step."""
    views = {v.sid: v for v in state.sessions}
    return max(state.cost.solo_step_ns(views[item.sid].n_past) for item in plan.items)


def _estimate(state: SchedulerState, plan: Plan) -> tuple[int, int]:
    """Bytes of the decode calls, and of the prompt work."""
    views = {v.sid: v for v in state.sessions}
    calls: dict[int, list[SessionView]] = {}
    prompt = 0
    for item in plan.items:
        view = views[item.sid]
        if item.phase is Phase.DECODE:
            calls.setdefault(item.call, []).append(view)
            continue
        whole = traffic.chunk(state.device, item.n_tokens, view.n_past)
        if item.mode is PrefillMode.MIXED:
            whole -= traffic.weights(state.device, 1)  # the streams' own call reads them
        prompt += int(whole * _part(state, plan, item, view))
    return sum(traffic.decode_call(state.device, rows) for rows in calls.values()), prompt


def _part(state: SchedulerState, plan: Plan, item: PlanItem, view: SessionView) -> float:
    """Part of the chunk that this tick computes."""
    if item.mode is not PrefillMode.SLICED:
        return 1.0
    whole = max(1, state.cost.prefill_ns(item.n_tokens, view.n_past))
    return min(1.0 - view.chunk_fraction, max(plan.run_ns, plan.min_pieces * plan.quantum_ns) / whole)


def _for_interactive_prompts(state: SchedulerState, plan: Plan, budget: int, why: str) -> Plan:
    """Without the background rows, and the prompts listed last, that an interactive prompt would be dropped for; the
    plan as it is where no interactive prompt has room even so. One that can pause has ticks without rows anyway.
    """
    prompts = plan.prompts if plan.decodes else ()
    n_kept = len(prompts) if prompts and prompts[0].mode is PrefillMode.OWN_CALL else 0
    while n_kept and prompt_view(state, prompts[n_kept - 1].sid).priority is not Priority.INTERACTIVE:
        n_kept -= 1
    if not n_kept:
        return plan
    fewer = _first_prompts(plan, n_kept, why) if n_kept < len(prompts) else plan
    fewer = _fewer_rows(state, fewer, budget, why)
    return fewer if not fewer.decodes or sum(_estimate(state, fewer)) <= budget else plan


def _first_prompts(plan: Plan, n: int, why: str) -> Plan:
    dropped = {i.sid for i in plan.prompts[n:]}
    plan = plan._replace(items=tuple(i for i in plan.items if i.sid not in dropped))
    return plan.note(f"bmt_guard: {len(dropped)} prompts wait: {why}")


def _less_prompt(state: SchedulerState, plan: Plan, budget: int, why: str) -> Plan:
    """Shorten the run to what the decode calls leave; without resumable prefill drop the last prompts' calls."""
    decode, prompt = _estimate(state, plan)
    if not (decode and prompt):
        return plan
    part, first, n_kept = max(0.0, (budget - decode) / prompt), plan.prompts[0], 0
    if first.mode is PrefillMode.SLICED:
        view = prompt_view(state, first.sid)
        whole = state.cost.prefill_ns(first.n_tokens, view.n_past) * (1.0 - view.chunk_fraction)
        run_ns = int(min(plan.run_ns, whole) * part)
        if run_ns >= plan.quantum_ns > 0:
            return plan._replace(run_ns=run_ns).note(f"bmt_guard: shorter prompt run: {why}")
        plan = plan._replace(run_ns=0, quantum_ns=0)
    elif first.mode is PrefillMode.OWN_CALL:
        n_kept = int(len(plan.prompts) * part)
    return _first_prompts(plan, n_kept, why)


def _fewer_rows(state: SchedulerState, plan: Plan, budget: int, why: str) -> Plan:
    """Drop background rows, most recently served first, until the decode calls fit beside the prompts."""
    planned, others = views_of(state, plan.decodes), plan.prompts
    left = budget - _estimate(state, plan)[1]
    interactive = [v for v in planned if v.priority is Priority.INTERACTIVE]
    background = [v for v in planned if v.priority is Priority.BACKGROUND]
    background.sort(key=lambda v: (v.t_last_ns, v.sid))
    n = n_all = len(background)
    is_forced = plan.guard is not None and plan.guard.kind == "forced"
    fewest = 0 if (interactive or others) and not is_forced else 1
    while n > fewest and traffic.decode_call(state.device, interactive + background[:n]) > left:
        n -= 1
    if n == n_all:
        return plan
    items = decode_items(state, interactive, background[:n])
    first = 1 + max((i.call for i in items), default=-1)
    moved = tuple(i._replace(call=first + k) if i.mode is PrefillMode.OWN_CALL else i for k, i in enumerate(others))
    return plan._replace(items=items + moved).note(f"bmt_guard: {n} of {n_all} background rows: {why}")
