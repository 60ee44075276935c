"""Prefill budget: how much prompt a tick reads when no latency guard limits it.

Rules with resumable prefill: chunks are as large as pays (cost model), but cut into pieces that would fit the
pause of a chat that starts meanwhile; the run is long, for a new request rings it off at the next piece.
Beside background streams it takes at least the tick budget and PROMPT_SHARE of the time. A prompt of the
interactive lane takes interactive_share of it: background streams skip ticks until their share is due.
Rules without it: one chunk per prompt and call, in order, while the adaptive token budget lasts.
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.chunks import fastest, pausable
from uma_core.policy.parts import Parts, parts_of, prompt_view, rows_time
from uma_core.policy.plan import SLICED, Plan, PlanItem
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Lane, Phase

NAME = "prefill_budget"
GUARD = "latency_guard"
IDLE_RUN_TICKS = 10  # length of a run with nobody decoding, in tick budgets
QUANTUM_NS = 8_000_000  # longest piece while no chat streams: what a new chat may have to wait ...
QUANTUM_SHARE = 0.25  # ... and at most this share of the time that reading its own short prompt takes
SHORT_PROMPT = 32
PROMPT_SHARE = 0.9
PAUSE_SAFETY = 0.8
TYPICAL_CONTEXT = 512
CHUNK_TICKS = 4  # with one lane, or none, a new chat waits for the chunk's end: its longest time in tick budgets


class TokenBudget(NamedTuple):
    """Adaptive number of prompt tokens per tick where prefill is not resumable."""

    n_tokens: int


def run(state: SchedulerState, plan: Plan) -> Plan:
    prompts = [i for i in plan.items if i.phase is Phase.PREFILL]
    parts = parts_of(state)
    if not prompts:
        moving = state.knobs.tick_budget_ns if parts.moving else 0
        return plan._replace(transfer_ns=max(plan.transfer_ns, moving)) if moving else plan
    if prompts[0].call == SLICED:
        return _sliced(state, plan, parts, prompts[0])
    return _in_calls(state, plan, parts, prompts)


def resize(item: PlanItem, view: SessionView, n_tokens: int) -> PlanItem:
    """The same prefill item with another chunk length."""
    return item if n_tokens == item.n_tokens else item._replace(n_tokens=n_tokens, want_logits=n_tokens == view.n_left)


def chunk_limit(state: SchedulerState) -> int:
    """Most tokens of a chunk, by the device and the knobs."""
    return max(1, min(state.device.n_ubatch, state.knobs.prefill_burst))


def _sliced(state: SchedulerState, plan: Plan, parts: Parts, item: PlanItem) -> Plan:
    view = prompt_view(state, item.sid)
    budget = state.knobs.tick_budget_ns
    items = tuple(i for i in plan.items if i.phase is Phase.DECODE)
    notes = plan.notes
    decode_ns = rows_time(state, parts.decoders) if items else 0
    run_ns = max(budget, int(decode_ns * PROMPT_SHARE / (1 - PROMPT_SHARE))) if items else IDLE_RUN_TICKS * budget
    if parts.workers and not parts.talkers and view.lane is Lane.INTERACTIVE:
        run_ns = _time_to_trickle(state, parts.workers, decode_ns)
        if run_ns > 0:
            items = ()
            notes = (*notes, "prefill_budget: background streams wait for an interactive prompt")
        else:
            run_ns = _trickle_period(state, decode_ns)
    if not view.n_chunk and not (parts.talk_ns and GUARD in state.knobs.stages):  # beside a chat the guard chooses the size
        item = resize(item, view, _open_size(state, view))
    quantum = min(QUANTUM_NS, int(QUANTUM_SHARE * state.cost.prefill_ns(SHORT_PROMPT, 0)), run_ns)
    is_coarse = state.cost.piece_ns(item.n_tokens, view.n_past) > run_ns  # deep in a context: no run would hold its next piece
    return plan._replace(items=(*items, item), run_ns=run_ns, quantum_ns=quantum, min_pieces=int(is_coarse), transfer_ns=budget, notes=notes)


def _trickle_period(state: SchedulerState, decode_ns: int) -> int:
    """Prefill time between two background decode rounds while an interactive prompt is read."""
    share = state.knobs.interactive_share
    return int(decode_ns * share / (1.0 - share))


def _time_to_trickle(state: SchedulerState, workers: list[SessionView], decode_ns: int) -> int:
    """Time until background streams are due again; <= 0: now."""
    last = max(v.t_last_ns for v in workers)
    return last + _trickle_period(state, decode_ns) - state.now_ns


def _open_size(state: SchedulerState, view: SessionView) -> int:
    pause = int((state.knobs.pause_cap - 1.0) * state.cost.solo_step_ns(TYPICAL_CONTEXT) * PAUSE_SAFETY)
    return pausable(state.cost, view.n_left, view.n_past, _bearable(state, view), pause)


def _bearable(state: SchedulerState, view: SessionView) -> int:
    """Longest chunk, where a chat that arrives must wait for the end of a background chunk."""
    limit, cost = chunk_limit(state), state.cost
    if state.device.n_prefill_lanes > 1 or view.lane is Lane.INTERACTIVE:
        return limit
    wanted = state.knobs.slo_ttft_ns // 2 or CHUNK_TICKS * state.knobs.tick_budget_ns
    return max([n for n in cost.chunks if cost.prefill_ns(n, view.n_past) <= wanted and n <= limit] or [min(cost.chunks[0], limit)])


def _in_calls(state: SchedulerState, plan: Plan, parts: Parts, prompts: list[PlanItem]) -> Plan:
    """Size chunks in order until the token budget is used up; the first prompt always gets one."""
    budget = _adapt(state)
    n_left = budget.n_tokens if parts.talkers or parts.workers else state.device.n_batch
    n_left = max(n_left, 1)
    kept: list[PlanItem] = []
    first = prompt_view(state, prompts[0].sid)
    for item in prompts:
        view = prompt_view(state, item.sid)
        is_behind_a_chat = kept and view.lane is Lane.BACKGROUND and first.lane is Lane.INTERACTIVE
        if n_left <= 0 or is_behind_a_chat:
            break
        size = fastest(state.cost, view.n_left, view.n_past, min(_bearable(state, view), n_left, state.device.n_batch))
        kept.append(resize(item, view, size))
        n_left -= size
    notes = plan.notes
    if len(kept) < len(prompts):
        notes = (*notes, f"prefill_budget: {len(kept)} of {len(prompts)} prompts fit {budget.n_tokens} tokens")
    decode = tuple(i for i in plan.items if i.phase is Phase.DECODE)
    carry = {**plan.carry, NAME: budget}
    return plan._replace(items=decode + tuple(kept), transfer_ns=state.knobs.tick_budget_ns, notes=notes, carry=carry)


def _adapt(state: SchedulerState) -> TokenBudget:
    """Grow or shrink the token budget so that a tick lasts about `tick_budget_ns`, by the last tick's measured time."""
    knobs = state.knobs
    memory = state.carry.get(NAME)
    n = memory.n_tokens if isinstance(memory, TokenBudget) else knobs.start_target_tokens
    if any(r.phase is Phase.PREFILL for r in state.reports):
        spent = sum(r.elapsed_ns for r in state.reports)
        if spent > knobs.tick_budget_ns:
            n = n * 3 // 4
        elif spent < knobs.tick_budget_ns * 3 // 4:
            n = n * 5 // 4 + 1
    return TokenBudget(max(1, min(n, state.device.n_batch)))
