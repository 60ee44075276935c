"""States and views for policy tests. Everything has a default, and tests name only what matters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from perf.simulator import calibrate
from perf.states import DEVICE, WAITING
from uma_core.engine.fake.cost import CPU_SHAPE, GPU_SHAPE, FakeCost
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.curve import Curve
from uma_core.policy.cost.model import CostModel
from uma_core.policy.memory import PolicyMemory, TbtMemory
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import Plan, PlanItem, check_plan
from uma_core.policy.state import CallReport, DeviceView, SchedulerState, SessionView
from uma_core.types import Phase, Priority

MS = 1_000_000
S = 1_000_000_000
NOW = 100 * S


@lru_cache
def cost_of(shape: FakeCost) -> CostModel:
    return calibrate(shape, DEVICE)


CPU = cost_of(CPU_SHAPE)
GPU = cost_of(GPU_SHAPE)
MIX_ROWS = (2, 4, 8, 16)
MIXING = CPU._replace(
    mixed=Curve((1, 8, 16), (16.2 * MS, 18.0 * MS, 30.0 * MS), (500.0, 4000.0, 8000.0))
)  # the device's step; eight rows take hardly longer


def waiting(sid: int, priority: Priority = Priority.INTERACTIVE, **more: Any) -> SessionView:
    """Return a queued session."""
    now = {"t_queued_ns": NOW, "t_progress_ns": NOW}
    view = WAITING._replace(**{"sid": sid, "priority": priority, **now, **more})
    return view if "t_progress_ns" in more else view._replace(t_progress_ns=view.t_queued_ns)


def reading(sid: int, priority: Priority = Priority.INTERACTIVE, **more: Any) -> SessionView:
    """Return a session in PREFILL. Its sequence is its sid unless `seq_id` says otherwise."""
    return waiting(sid, priority, **{"phase": Phase.PREFILL, "seq_id": sid, "n_cells": 200, **more})


def talking(sid: int, priority: Priority = Priority.INTERACTIVE, **more: Any) -> SessionView:
    """Return a session in DECODE that got its last token one solo step ago."""
    known = {"phase": Phase.DECODE, "seq_id": sid, "n_past": 110, "n_generated": 10, "n_cells": 200}
    times = {
        "t_queued_ns": NOW - S,
        "t_first_ns": NOW - S // 2,
        "t_last_ns": NOW - 16 * MS,
        "t_progress_ns": NOW - 16 * MS,
    }
    return waiting(sid, priority, **{**known, **times, **more})


def state_of(
    *views: SessionView, cost: CostModel = CPU, config: SchedulerConfig | None = None, **more: Any
) -> SchedulerState:
    """`more`: fields of the state, or of the device."""
    device = {k: more.pop(k) for k in list(more) if k in DeviceView._fields}
    plain = {"tick": 1000, "now_ns": NOW, "reports": (), "memory": PolicyMemory(), **more}
    return SchedulerState(
        sessions=views, device=DEVICE._replace(**device), config=config or SchedulerConfig(), cost=cost, **plain
    )


def planned(stages: Sequence[str], state: SchedulerState) -> Plan:
    """Return the plan of these stages, which must keep the contract of every plan."""
    plan = compose(stages)(state)
    assert check_plan(state, plan) == []
    return plan


def guarded(**fields: Any) -> PolicyMemory:
    """Return the latency guard's memory."""
    return PolicyMemory(latency_guard=TbtMemory(**fields))


def sids(plan: Plan, phase: Phase) -> list[int]:
    return [i.sid for i in plan.items if i.phase is phase]


def prefill_item(plan: Plan) -> PlanItem | None:
    return next((i for i in plan.items if i.phase is Phase.PREFILL), None)


def report(phase: Phase, n_rows: int, predicted_ns: int, elapsed_ns: int) -> CallReport:
    return CallReport(phase, n_rows, 0, predicted_ns, elapsed_ns, 0, False)
