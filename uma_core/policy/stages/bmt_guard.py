"""ΣBMT guard (bytes moved through memory per tick): keeps them within bandwidth budget x time.

Rules: the time is the tick budget, or the prompt run where that is longer. Over budget, prompt work is cut
first, then background rows (those served most recently). Interactive rows stay, and so does the last piece of
work in a tick: the guard slows things down, it never stops them. With the budget off it only makes the estimate.
"""

from __future__ import annotations

from uma_core.policy import traffic
from uma_core.policy.index import index_of, prompt_view
from uma_core.policy.plan import Plan, PlanItem, PrefillMode
from uma_core.policy.rows import decode_items
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Phase


def run(state: SchedulerState, plan: Plan) -> Plan:
    if not plan.items:
        return plan
    budget = _budget(state, plan)
    decode, prompt = _estimate(state, plan)
    if budget and decode + prompt > budget:
        why = f"{(decode + prompt) / 1e6:.0f} MB > {budget / 1e6:.0f}"
        is_forced = plan.guard is not None and plan.guard.kind == "forced"
        if prompt and decode and not is_forced:
            plan = _less_prompt(state, plan, max(0.0, (budget - decode) / prompt), why)
            decode, prompt = _estimate(state, plan)
        if decode + prompt > budget:
            plan = _fewer_rows(state, plan, budget - prompt, why, is_forced)
            decode, prompt = _estimate(state, plan)
    return plan._replace(bmt_bytes=decode + prompt, bmt_budget=budget)


def _budget(state: SchedulerState, plan: Plan) -> int:
    """Bytes for this tick; 0: unlimited."""
    rate = state.config.bmt_budget
    if rate < 0:
        rate = traffic.measured_bandwidth(state.device, state.cost.solo_step_ns(0))
    return int(rate * max(state.config.tick_budget_ns, plan.run_ns)) if rate else 0


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


def _less_prompt(state: SchedulerState, plan: Plan, part: float, why: str) -> Plan:
    """Shorten the run to `part` of what it would compute; without resumable prefill drop the last prompts' calls."""
    prompts = [i for i in plan.items if i.phase is Phase.PREFILL]
    keep = 0
    if prompts[0].mode is PrefillMode.SLICED:
        view = prompt_view(state, prompts[0].sid)
        whole = state.cost.prefill_ns(prompts[0].n_tokens, view.n_past) * (1.0 - view.chunk_fraction)
        run_ns = int(min(plan.run_ns, whole) * part)
        if run_ns >= plan.quantum_ns > 0:
            return plan._replace(run_ns=run_ns).note(f"bmt_guard: shorter prompt run: {why}")
        plan = plan._replace(run_ns=0, quantum_ns=0)
    elif prompts[0].mode is PrefillMode.OWN_CALL:
        keep = int(len(prompts) * part)
    dropped = {i.sid for i in prompts[keep:]}
    plan = plan._replace(items=tuple(i for i in plan.items if i.sid not in dropped))
    return plan.note(f"bmt_guard: {len(dropped)} prompts wait: {why}")


def _fewer_rows(state: SchedulerState, plan: Plan, budget: int, why: str, is_forced: bool) -> Plan:
    """Drop background rows, most recently served first, until the decode calls fit."""
    index = index_of(state)
    planned = {i.sid for i in plan.items if i.phase is Phase.DECODE}
    interactive = [v for v in index.interactive if v.sid in planned]
    background = sorted((v for v in index.background if v.sid in planned), key=lambda v: (v.t_last_ns, v.sid))
    others = tuple(i for i in plan.items if i.phase is not Phase.DECODE)
    n = n_all = len(background)
    fewest = 0 if (interactive or others) and not is_forced else 1
    while n > fewest and traffic.decode_call(state.device, interactive + background[:n]) > budget:
        n -= 1
    if n == n_all:
        return plan
    items = decode_items(state, interactive, background[:n])
    first = 1 + max((i.call for i in items), default=-1)
    moved = tuple(i._replace(call=first + k) if i.mode is PrefillMode.OWN_CALL else i for k, i in enumerate(others))
    return plan._replace(items=items + moved).note(f"bmt_guard: {n} of {n_all} background rows: {why}")
