"""Ticks as JSON lines: (state, plan, result), written and read.

Rules: a line is self-contained except for its context (device, configuration, cost tables), which is written once and
referred to by number. Everything in `memory` must be a NamedTuple of CARRIED, a number, a string, a tuple or a dict of
those.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.model import CostModel
from uma_core.policy.memory import Ledger, PolicyMemory, TbtMemory
from uma_core.policy.plan import Plan, TbtDecision
from uma_core.policy.state import CallReport, DeviceView, SchedulerState, SessionView
from uma_core.types import Phase, Priority

CARRIED: dict[str, type] = {cls.__name__: cls for cls in (Ledger, PolicyMemory, TbtDecision, TbtMemory)}
DRIFTING = ("factors", "counts")  # parts of the cost model that are corrected in every tick
# parts of the device that differ in every tick
CHANGING = (
    "free_seqs",
    "n_cells_free",
    "seq_held",
    "seq_loss_ns",
    "seq_shared",
    "draft_token_ns",
)


class Tick(NamedTuple):
    """One tick as the executor saw it."""

    state: SchedulerState
    plan: Plan
    reports: tuple[CallReport, ...]


def pack(value: Any) -> Any:
    """Turn a value of a state or plan into JSON. Raises: ValueError for a value that could not be read back."""
    if isinstance(value, IntEnum):
        return int(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "_fields"):
        name = type(value).__name__
        if name not in CARRIED:
            raise ValueError(f"{name} is not among trace.lines.CARRIED")
        return {"$": name, "v": [pack(v) for v in value]}
    if isinstance(value, (tuple, list)):
        return [pack(v) for v in value]
    if isinstance(value, Mapping):
        return {"$map": [[pack(k), pack(v)] for k, v in value.items()]}
    raise ValueError(f"cannot record a {type(value).__name__}")


def unpack(data: Any) -> Any:
    """The inverse of `pack`; lists become tuples."""
    if isinstance(data, list):
        return tuple(unpack(v) for v in data)
    if isinstance(data, dict):
        if "$map" in data:
            return {unpack(k): unpack(v) for k, v in data["$map"]}
        return CARRIED[data["$"]](*[unpack(v) for v in data["v"]])
    return data


def pack_plan(plan: Plan) -> dict[str, Any]:
    fields = {name: value for name, value in zip(plan._fields, plan, strict=True) if name not in ("admit", "items")}
    return {
        "admit": [list(a) for a in plan.admit],
        "items": [pack(tuple(i)) for i in plan.items],
        **{name: pack(value) for name, value in fields.items()},
    }


def _context(state: SchedulerState) -> dict[str, Any]:
    """Return the parts of a state that hardly change."""
    return {
        "device": {k: pack(v) for k, v in state.device._asdict().items() if k not in CHANGING},
        "config": {f.name: pack(getattr(state.config, f.name)) for f in dataclasses.fields(state.config)},
        "cost": {k: v for k, v in state.cost.to_dict().items() if k not in DRIFTING},
    }


def _is_same_context(a: SchedulerState, b: SchedulerState) -> bool:
    """Whether two states have the same context. Their tables are usually the same objects, which compare fast."""
    if a.config != b.config or any(
        getattr(a.cost, k) != getattr(b.cost, k) for k in a.cost._fields if k not in DRIFTING
    ):
        return False
    return all(getattr(a.device, k) == getattr(b.device, k) for k in a.device._fields if k not in CHANGING)


def pack_tick(tick: Tick, context: int) -> dict[str, Any]:
    state = tick.state
    return {
        "context": context,
        "tick": state.tick,
        "now_ns": state.now_ns,
        "sessions": [pack(tuple(s)) for s in state.sessions],
        "device": {k: pack(getattr(state.device, k)) for k in CHANGING},
        "cost": {k: pack(getattr(state.cost, k)) for k in DRIFTING},
        "reports": [pack(tuple(r)) for r in state.reports],  # since the plan before this one
        "memory": pack(state.memory),
        "overhead_ns": state.overhead_ns,
        "plan": pack_plan(tick.plan),
        "result": [pack(tuple(r)) for r in tick.reports],  # of this tick
    }


def unpack_state(line: dict[str, Any], context: dict[str, Any]) -> SchedulerState:
    device = {
        **{k: unpack(v) for k, v in context["device"].items()},
        **{k: unpack(v) for k, v in line["device"].items()},
    }
    return SchedulerState(
        tick=line["tick"],
        now_ns=line["now_ns"],
        sessions=tuple(_session(row) for row in line["sessions"]),
        device=DeviceView(**device),
        config=SchedulerConfig(**{k: unpack(v) for k, v in context["config"].items()}),
        cost=CostModel.from_dict({**context["cost"], **line["cost"]}),
        reports=tuple(_report(row) for row in line["reports"]),
        memory=unpack(line["memory"]),
        overhead_ns=line["overhead_ns"],
    )


def _session(row: list[Any]) -> SessionView:
    view = SessionView(*unpack(row))
    return view._replace(priority=Priority(view.priority), phase=Phase(view.phase))


def _report(row: list[Any]) -> CallReport:
    report = CallReport(*unpack(row))
    return report._replace(phase=Phase(report.phase))


class Lines:
    """Ticks as JSON lines that `replay` reads."""

    def __init__(self) -> None:
        self._last: SchedulerState | None = None
        self._n_contexts = 0

    def of(self, tick: Tick) -> Iterator[str]:
        """Yield the tick's line, after a line for its context if that is new."""
        if self._last is None or not _is_same_context(self._last, tick.state):
            self._n_contexts += 1
            yield json.dumps({"new_context": self._n_contexts, **_context(tick.state)})
        self._last = tick.state
        yield json.dumps(pack_tick(tick, self._n_contexts))

    def restart(self) -> None:
        """Start a new file: the next tick needs its context again."""
        self._last = None


def recorded(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any], SchedulerState]]:
    """Yield (number of its line, the line, the state) of every tick.

    A line that was cut off because its writer was stopped is skipped: it is the last one, or a new context follows it.
    Raises: ValueError for any other line that is not JSON.
    """
    contexts: dict[int, dict[str, Any]] = {}
    n_cut = 0
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
        except ValueError:
            n_cut = number
            continue
        if n_cut and "new_context" not in line:
            raise ValueError(f"line {n_cut} is not JSON")
        n_cut = 0
        if "new_context" in line:
            contexts[line["new_context"]] = line
            continue
        yield number, line, unpack_state(line, contexts[line["context"]])
