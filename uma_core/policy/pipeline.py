"""The policy as a pipeline: named stages, each a pure function of (state, plan), run in order.

Rules: a stage may add, shrink, reorder or drop items, sets budgets, and says so in `plan.notes`. What it
wants to remember it puts into `plan.carry` under its own name. A stage that is left out changes nothing.
`seal` lets a stage look at the finished plan, to remember what was planned after it had its turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from uma_core.policy.guard_memory import Kind
from uma_core.policy.knobs import DEFAULT_STAGES
from uma_core.policy.parts import index
from uma_core.policy.plan import SLICED, GuardView, Plan
from uma_core.policy.stages import (
    admission,
    bmt_guard,
    decode_first,
    fairness,
    latency_guard,
    prefill_budget,
    prefill_order,
    prefix_reuse,
    sweet_spot,
)
from uma_core.policy.state import SchedulerState
from uma_core.policy.steady import n_repeats
from uma_core.types import Phase


class Stage(Protocol):
    def __call__(self, state: SchedulerState, plan: Plan) -> Plan: ...


class StageSpec(NamedTuple):
    run: Stage
    seal: Stage | None = None


REGISTRY: dict[str, StageSpec] = {
    "admission": StageSpec(admission.run),
    "prefix_reuse": StageSpec(prefix_reuse.run),
    "decode_first": StageSpec(decode_first.run),
    "fairness": StageSpec(fairness.run, fairness.seal),
    "prefill_order": StageSpec(prefill_order.run),
    "prefill_budget": StageSpec(prefill_budget.run),
    "latency_guard": StageSpec(latency_guard.run),
    "bmt_guard": StageSpec(bmt_guard.run),
    "sweet_spot": StageSpec(sweet_spot.run),
}


class Pipeline(NamedTuple):
    """A composed policy. Call it with a state to get the plan."""

    names: tuple[str, ...]
    stages: tuple[StageSpec, ...]

    def __call__(self, state: SchedulerState) -> Plan:
        state = index(state)
        plan = Plan(carry=state.carry)
        for stage in self.stages:
            plan = stage.run(state, plan)
        for stage in self.stages:
            if stage.seal is not None:
                plan = stage.seal(state, plan)
        again = n_repeats(state, plan)
        return plan._replace(n_repeats=again) if again else plan


def compose(names: Iterable[str], extra: dict[str, StageSpec] | None = None) -> Pipeline:
    """Build a policy from stage names. `extra` adds stages that are not in the registry.

    Raises ValueError for an unknown name, one that is listed twice, and stages that are not in the order of DEFAULT_STAGES.
    """
    known = {**REGISTRY, **(extra or {})}
    listed = tuple(names)
    unknown = [name for name in listed if name not in known]
    if unknown:
        raise ValueError(f"unknown scheduler stage {unknown[0]!r}; known: {', '.join(sorted(known))}")
    twice = sorted({name for name in listed if listed.count(name) > 1})
    if twice:
        raise ValueError(f"scheduler stage {twice[0]!r} is listed twice")
    ours = [name for name in listed if name in DEFAULT_STAGES]
    for before, after in itertools.pairwise(ours):
        if DEFAULT_STAGES.index(before) > DEFAULT_STAGES.index(after):
            raise ValueError(f"scheduler stage {after!r} must come before {before!r}: it prepares what that one limits")
    return Pipeline(listed, tuple(known[name] for name in listed))


def explain(plan: Plan) -> dict[str, object]:
    """The plan in words and numbers, for `status` and traces."""
    calls: dict[int, int] = {}
    for item in plan.items:
        if item.phase is Phase.DECODE:
            calls[item.call] = calls.get(item.call, 0) + item.n_tokens
    prefill = [i for i in plan.items if i.phase is Phase.PREFILL]
    words: dict[str, object] = {
        "admit": [a.sid for a in plan.admit],
        "park": list(plan.park),
        "decode_rows_by_call": [calls[c] for c in sorted(calls)],
        "prefill": [{"sid": i.sid, "n_tokens": i.n_tokens, "sliced": i.call == SLICED, "reason": i.reason} for i in prefill],
        "run_ms": plan.run_ns / 1e6,
        "quantum_ms": plan.quantum_ns / 1e6,
        "min_pieces": plan.min_pieces,
        "transfer_ms": plan.transfer_ns / 1e6,
        "bmt_mb": plan.bmt_bytes / 1e6,
        "notes": list(plan.notes),
    }
    return words if plan.guard is None else {**words, "guard": guard_words(plan.guard)}


def guard_words(guard: GuardView) -> dict[str, object]:
    """What the latency guard went by, in ms."""
    fields = {name.replace("_ns", "_ms"): round(value / 1e6, 4) if name.endswith("_ns") else value for name, value in guard._asdict().items()}
    return {**fields, "kind": Kind(guard.kind).name.lower()}
