"""ΣBMT guard: keeps the bytes that a tick moves through memory within bandwidth budget x time.

Rules: the time is the tick budget, or the prompt run or one step if that is longer. Over budget, prompt work is cut
first, then background rows. Interactive rows stay, and so do the last piece of work in a tick and work that starves
beside a chat: the guard slows work down, but never stops it. With the budget off it only makes the estimate.
"""

from __future__ import annotations

from uma_core.policy import traffic
from uma_core.policy.index import prompt_view, views_of
from uma_core.policy.order import is_starved
from uma_core.policy.plan import Plan, PrefillMode
from uma_core.policy.rows import decode_items
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Phase, Priority


def run(state: SchedulerState, plan: Plan) -> Plan:
    if not plan.items:
        return plan
    budget, moved = _budget(state, plan), _estimate(state, plan)
    if budget and sum(moved) > budget:
        why = f"{sum(moved) / 1e6:.0f} MB > {budget / 1e6:.0f}"
        for cut in (_fewer_rows,) if _must_stay(state, plan) else (_for_interactive_prompts, _less_prompt, _fewer_rows):
            if sum(moved) > budget:
                plan = cut(state, plan, budget, why)
                moved = _estimate(state, plan)
    return plan._replace(bmt_bytes=sum(moved), bmt_budget=budget)


def _must_stay(state: SchedulerState, plan: Plan) -> bool:
    """Whether the latency guard forced work, or planned work starves without having been forced. If such work were cut
    once, it would be cut in every gap.
    """
    if plan.guard is not None and plan.guard.kind == "forced":
        return True
    prompts = {i.sid for i in plan.prompts}
    others = (v for v in views_of(state, plan.items) if v.sid in prompts or v.priority is Priority.BACKGROUND)
    return any(is_starved(state, v) for v in others)


def _budget(state: SchedulerState, plan: Plan) -> int:
    """Bytes that this tick may move; 0: unlimited."""
    rate, cost = state.config.bmt_budget, state.cost
    if not rate:
        return 0
    if rate < 0:  # bytes per ns (GB/s) of a measured step of one row, which reads the weights once
        rate = traffic.weights(state.device, 1) / max(1, cost.solo_step_ns(0))
    # if one step takes longer than the tick budget, the bytes of a tick budget would not suffice for any step
    step_ns = max(cost.solo_step_ns(v.n_past) for v in views_of(state, plan.items))
    return int(rate * max(state.config.tick_budget_ns, plan.run_ns, step_ns))


def _estimate(state: SchedulerState, plan: Plan) -> tuple[int, int]:
    """Estimate the bytes of the decode calls, and those of the prompt work."""
    device, views = state.device, {v.sid: v for v in views_of(state, plan.items)}
    calls: dict[int, list[SessionView]] = {}
    prompt = 0
    for item in plan.items:
        view = views[item.sid]
        if item.phase is Phase.DECODE:
            calls.setdefault(item.call, []).append(view)
            continue
        whole, part = traffic.chunk(device, item.n_tokens, view.n_past), 1.0
        if item.mode is PrefillMode.MIXED:
            whole -= traffic.weights(device, 1)  # the streams' own call reads them
        elif item.mode is PrefillMode.SLICED:  # the part that this tick computes
            whole_ns = max(1, state.cost.prefill_ns(item.n_tokens, view.n_past))
            part = min(1.0 - view.chunk_fraction, max(plan.run_ns, plan.min_pieces * plan.quantum_ns) / whole_ns)
        prompt += int(whole * part)
    return sum(_rows_bytes(state, rows) for rows in calls.values()), prompt


def _rows_bytes(state: SchedulerState, views: list[SessionView]) -> int:
    return traffic.decode_call(state.device, len(views), sum([v.n_past for v in views]))


def _for_interactive_prompts(state: SchedulerState, plan: Plan, budget: int, why: str) -> Plan:
    """Drop background rows and the last prompts, if that makes room for an interactive prompt, which would otherwise
    wait until these rows end. A prompt that can pause needs no such help: it gets ticks without rows.
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
    """Shorten the run to the bytes that decode calls leave; without resumable prefill drop the last prompts' calls."""
    decode, prompt = _estimate(state, plan)
    if not (decode and prompt):
        return plan
    part, first = max(0.0, (budget - decode) / prompt), plan.prompts[0]
    if first.mode is PrefillMode.SLICED:
        view = prompt_view(state, first.sid)
        whole = state.cost.prefill_ns(first.n_tokens, view.n_past) * (1.0 - view.chunk_fraction)
        run_ns = int(min(plan.run_ns, whole) * part)
        if run_ns >= plan.quantum_ns > 0:
            return plan._replace(run_ns=run_ns).note(f"bmt_guard: shorter prompt run: {why}")
    n_kept = int(len(plan.prompts) * part) if first.mode is PrefillMode.OWN_CALL else 0
    return _first_prompts(plan._replace(run_ns=0, quantum_ns=0), n_kept, why)


def _fewer_rows(state: SchedulerState, plan: Plan, budget: int, why: str) -> Plan:
    """Drop background rows, most recently served first, until the decode calls fit beside the prompts."""
    planned, others = views_of(state, plan.decodes), plan.prompts
    left = budget - _estimate(state, plan)[1]
    interactive = [v for v in planned if v.priority is Priority.INTERACTIVE]
    background = [v for v in planned if v.priority is Priority.BACKGROUND]
    background.sort(key=lambda v: (v.t_last_ns, v.sid))
    n = n_all = len(background)
    fewest = 0 if (interactive or others) and not _must_stay(state, plan) else 1
    while n > fewest and _rows_bytes(state, interactive + background[:n]) > left:
        n -= 1
    if n == n_all:
        return plan
    items = decode_items(state, interactive, background[:n])
    first = 1 + max((i.call for i in items), default=-1)
    prompts = tuple(i._replace(call=first + k) if i.mode is PrefillMode.OWN_CALL else i for k, i in enumerate(others))
    return plan._replace(items=items + prompts).note(f"bmt_guard: {n} of {n_all} background rows: {why}")
