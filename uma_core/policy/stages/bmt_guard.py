"""ΣBMT guard (bytes moved through memory per tick): keeps them within bandwidth budget x time.

Rules: the time is the tick budget, or the prompt run or one step where that is longer. Over budget, prompt work is cut
first, then background rows (those served most recently); an interactive prompt that cannot pause stays where these rows
make room for it, or it would wait until they end. Interactive rows stay, and so does the last piece of work in a tick:
the guard slows things down, it never stops them. With the budget off it only makes the estimate.
"""

from __future__ import annotations

from uma_core.policy import traffic
from uma_core.policy.index import index_of, prompt_view
from uma_core.policy.plan import Plan, PlanItem, PrefillMode
from uma_core.policy.rows import decode_items
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Phase, Priority


def run(state: SchedulerState, plan: Plan) -> Plan:
    if not plan.items:
        return plan
    budget = _budget(state, plan)
    decode, prompt = _estimate(state, plan)
    if budget and decode + prompt > budget:
        why = f"{(decode + prompt) / 1e6:.0f} MB > {budget / 1e6:.0f}"
        is_forced = plan.guard is not None and plan.guard.kind == "forced"
        if prompt and decode and not is_forced:
            plan = _for_interactive_prompts(state, plan, budget, why)
            decode, prompt = _estimate(state, plan)
        if prompt and decode and not is_forced and decode + prompt > budget:
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
    prompts = [i for i in plan.items if i.phase is Phase.PREFILL]
    n_kept = len(prompts) if prompts[0].mode is PrefillMode.OWN_CALL else 0
    while n_kept and prompt_view(state, prompts[n_kept - 1].sid).priority is not Priority.INTERACTIVE:
        n_kept -= 1
    if not n_kept:
        return plan
    fewer = _first_prompts(plan, prompts, n_kept, why) if n_kept < len(prompts) else plan
    _, prompt = _estimate(state, fewer)
    fewer = _fewer_rows(state, fewer, budget - prompt, why, False)
    decode, prompt = _estimate(state, fewer)
    return fewer if not decode or decode + prompt <= budget else plan


def _first_prompts(plan: Plan, prompts: list[PlanItem], n: int, why: str) -> Plan:
    dropped = {i.sid for i in prompts[n:]}
    plan = plan._replace(items=tuple(i for i in plan.items if i.sid not in dropped))
    return plan.note(f"bmt_guard: {len(dropped)} prompts wait: {why}")


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
    return _first_prompts(plan, prompts, keep, why)


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
