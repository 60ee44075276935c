"""The policy as a pipeline: named stages, each a pure function of (state, plan), run in order.

Rules: `learn` comes before every `run`, for what several stages read: the charges by client. (What one stage alone
learns from the last tick, it learns in its `run`.) `run` may add, shrink, reorder or drop items and set budgets, and
says so in `plan.notes`. `seal` looks at the finished plan. A stage keeps its memory in its own field of `plan.memory`,
and tells the other stages only through the plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

from uma_core.policy.config import DEFAULT_STAGES, RETIRED_STAGES
from uma_core.policy.deadlines import begin_together
from uma_core.policy.index import indexed
from uma_core.policy.order import FAIR_QUANTUM_NS
from uma_core.policy.plan import Plan
from uma_core.policy.repeat import n_repeats
from uma_core.policy.stages import (
    admission,
    bmt_guard,
    decode_first,
    fairness,
    latency_guard,
    prefill_budget,
    prefill_order,
    prefix_reuse,
    speculate,
)
from uma_core.policy.state import SchedulerState
from uma_core.policy.tbt import limits

Stage = Callable[[SchedulerState, Plan], Plan]


def _nothing(state: SchedulerState, plan: Plan) -> Plan:
    return plan


class StageSpec(NamedTuple):
    run: Stage = _nothing
    learn: Stage = _nothing
    seal: Stage = _nothing


REGISTRY: dict[str, StageSpec] = {
    "admission": StageSpec(admission.run),
    "prefix_reuse": StageSpec(prefix_reuse.run),
    "decode_first": StageSpec(decode_first.run),
    "fairness": StageSpec(learn=fairness.learn, seal=fairness.seal),
    "prefill_order": StageSpec(prefill_order.run),
    "prefill_budget": StageSpec(prefill_budget.run),
    "latency_guard": StageSpec(latency_guard.run, seal=latency_guard.seal),
    "bmt_guard": StageSpec(bmt_guard.run),
    "speculate": StageSpec(speculate.run),
}


# These stages admit, give streams tokens, choose a prompt and size its chunk. Without one of them some request is never
# served.
NEEDED_STAGES = ("admission", "decode_first", "prefill_order", "prefill_budget")


class Pipeline(NamedTuple):
    """A composed policy. Call it with a state to get the plan."""

    names: tuple[str, ...]
    stages: tuple[StageSpec, ...]

    def __call__(self, state: SchedulerState) -> Plan:
        given = indexed(state)
        state, plan = begin_together(given), Plan(memory=state.memory)
        if state is not given:
            waiting = ", ".join(str(v.sid) for v in given.index_.streams)
            plan = plan.note(f"deadlines: wait to begin with the next chat: {waiting}")
        for stage in self.stages:
            plan = stage.learn(state, plan)
        for stage in self.stages:
            plan = stage.run(state, plan)
        for stage in self.stages:
            plan = stage.seal(state, plan)
        plan = limits.seal(state, plan)
        return plan._replace(n_repeats=n_repeats(state, plan), t_repeat_ns=state.now_ns + FAIR_QUANTUM_NS)


def compose(names: Iterable[str]) -> Pipeline:
    """Build a policy from stage names. Names of retired stages do nothing.

    Raises ValueError for an unknown name, one that is listed twice, and stages that are not in the order of
    DEFAULT_STAGES.
    """
    listed = tuple(name for name in names if name not in RETIRED_STAGES)
    unknown = [name for name in listed if name not in REGISTRY]
    if unknown:
        raise ValueError(f"unknown scheduler stage {unknown[0]!r}; known: {', '.join(sorted(REGISTRY))}")
    twice = sorted({name for name in listed if listed.count(name) > 1})
    if twice:
        raise ValueError(f"scheduler stage {twice[0]!r} is listed twice")
    for before, after in itertools.pairwise(listed):
        if DEFAULT_STAGES.index(before) > DEFAULT_STAGES.index(after):
            raise ValueError(f"scheduler stage {after!r} must come before {before!r}")
    return Pipeline(listed, tuple(REGISTRY[name] for name in listed))


def check_serving(names: Iterable[str]) -> None:
    """Raise ValueError for stages that cannot be composed, or that would leave some request waiting forever."""
    listed = compose(names).names
    missing = [name for name in NEEDED_STAGES if name not in listed]
    if missing:
        raise ValueError(f"without {', '.join(missing)} some request is never served")
