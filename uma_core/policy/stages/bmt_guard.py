"""ΣBMT guard: keep the bytes that a tick moves within bandwidth budget x time.

Rules: the time is the tick budget, or the prompt run where that is longer. Over budget, prompt work is cut
first, then background rows (those served most recently). Interactive rows stay, and so does the last piece of
work in a tick: the guard slows things down, it never stops them. With the budget off it only makes the estimate.
"""

from __future__ import annotations

from uma_core.policy import traffic
from uma_core.policy.guard_memory import GuardMemory, Kind
from uma_core.policy.parts import parts_of, prompt_view
from uma_core.policy.plan import SLICED, Plan, PlanItem, riders
from uma_core.policy.stages.decode_first import decode_items
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Phase


def run(state: SchedulerState, plan: Plan) -> Plan:
    if not plan.items:
        return plan
    budget = _budget(state, plan)
    plan, n_bytes = _trimmed(state, plan, budget) if budget else (plan, sum(_estimate(state, plan)))
    return plan._replace(bmt_bytes=n_bytes, bmt_budget=budget)


def _budget(state: SchedulerState, plan: Plan) -> int:
    """Bytes for this tick; 0: unlimited."""
    rate = state.knobs.bmt_budget
    if rate < 0:
        rate = traffic.measured_bandwidth(state.device, state.cost.solo_step_ns(0))
    return int(rate * max(state.knobs.tick_budget_ns, plan.run_ns)) if rate else 0


def _views(state: SchedulerState, plan: Plan) -> dict[int, SessionView]:
    parts = parts_of(state)
    views = {v.sid: v for v in parts.talkers}
    views.update((v.sid, v) for v in parts.workers)
    wanted = {i.sid for i in plan.items if i.phase is Phase.PREFILL}
    views.update((v.sid, v) for v in state.sessions if v.sid in wanted)
    return views


def _estimate(state: SchedulerState, plan: Plan) -> tuple[int, int]:
    """Bytes of the decode calls, and of the prompt work."""
    views = _views(state, plan)
    riding = riders(plan)
    calls: dict[int, list[SessionView]] = {}
    prompt = 0
    for item in plan.items:
        view = views[item.sid]
        if item.phase is Phase.DECODE:
            calls.setdefault(item.call, []).append(view)
        else:
            whole = traffic.chunk(state.device, item.n_tokens, view.n_past)
            if item.sid in riding:
                whole -= traffic.weights(state.device, 1)  # the streams' own call reads them
            prompt += int(whole * _part(state, plan, item, view))
    return sum(traffic.decode_call(state.device, rows) for rows in calls.values()), prompt


def _part(state: SchedulerState, plan: Plan, item: PlanItem, view: SessionView) -> float:
    """Part of the chunk that this tick computes."""
    if item.call != SLICED:
        return 1.0
    whole = max(1, state.cost.prefill_ns(item.n_tokens, view.n_past))
    return min(1.0 - view.chunk_fraction, max(plan.run_ns, plan.min_pieces * plan.quantum_ns) / whole)


def _trimmed(state: SchedulerState, plan: Plan, budget: int) -> tuple[Plan, int]:
    """The plan within the budget, as far as it can be, and its bytes."""
    decode, prompt = _estimate(state, plan)
    if decode + prompt <= budget:
        return plan, decode + prompt
    why = f"{(decode + prompt) / 1e6:.0f} MB > {budget / 1e6:.0f}"
    if prompt and decode and not _is_forced(plan):
        plan = _less_prompt(state, plan, max(0.0, (budget - decode) / prompt), why)
        decode, prompt = _estimate(state, plan)
    if decode + prompt > budget:
        plan = _fewer_rows(state, plan, budget - prompt, why)
        decode, prompt = _estimate(state, plan)
    return plan, decode + prompt


def _less_prompt(state: SchedulerState, plan: Plan, part: float, why: str) -> Plan:
    """Shorten the run to `part` of what it would compute; without resumable prefill drop the last prompts' calls."""
    prefill = [i for i in plan.items if i.phase is Phase.PREFILL]
    if prefill[0].call == SLICED:
        view = prompt_view(state, prefill[0].sid)
        whole = state.cost.prefill_ns(prefill[0].n_tokens, view.n_past) * (1.0 - view.chunk_fraction)
        run_ns = int(min(plan.run_ns, whole) * part)
        if run_ns >= plan.quantum_ns > 0:
            return plan._replace(run_ns=run_ns, notes=(*plan.notes, f"bmt_guard: shorter prompt run: {why}"))
        keep = 0
    else:
        keep = int(len(prefill) * part)
    dropped = {i.sid for i in prefill[keep:]}
    items = tuple(i for i in plan.items if i.sid not in dropped)
    return plan._replace(
        items=items,
        run_ns=0 if prefill[0].call == SLICED else plan.run_ns,
        quantum_ns=0 if prefill[0].call == SLICED else plan.quantum_ns,
        notes=(*plan.notes, f"bmt_guard: {len(dropped)} prompts wait: {why}"),
    )


def _fewer_rows(state: SchedulerState, plan: Plan, budget: int, why: str) -> Plan:
    """Drop background rows, most recently served first, until the decode calls fit."""
    parts = parts_of(state)
    planned = {i.sid for i in plan.items if i.phase is Phase.DECODE}
    talkers = [v for v in parts.talkers if v.sid in planned]
    workers = sorted((v for v in parts.workers if v.sid in planned), key=lambda v: (v.t_last_ns, v.sid))
    others = tuple(i for i in plan.items if i.phase is not Phase.DECODE)
    fewest = 0 if (talkers or others) and not _is_forced(plan) else 1
    n = len(workers)
    while n > fewest and traffic.decode_call(state.device, talkers + workers[:n]) > budget:
        n -= 1
    if n == len(workers):
        return plan
    items = decode_items(state, talkers, workers[:n])
    first = 1 + max((i.call for i in items), default=-1)
    moved = tuple(i if i.call == SLICED else i._replace(call=first + k) for k, i in enumerate(others))
    return plan._replace(items=items + moved, notes=(*plan.notes, f"bmt_guard: {n} of {len(workers)} background rows: {why}"))


def _is_forced(plan: Plan) -> bool:
    """True if the latency guard put a row in against starvation: then one stays."""
    memory = plan.carry.get("latency_guard")
    return isinstance(memory, GuardMemory) and memory.last_kind == Kind.FORCED
