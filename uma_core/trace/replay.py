"""Plans recorded states again: to find plans that differ, and to show ticks with names and other settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from uma_core.policy.cost.model import REGIMES
from uma_core.policy.index import index_of
from uma_core.policy.pipeline import compose
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.trace.lines import pack_plan, recorded
from uma_core.trace.words import DEPRECATED, explain, guard_words

NO_TICKS = "it has no ticks (a daemon without requests records none)"


def differences(lines: Iterable[str]) -> Iterator[str]:
    """Plan every recorded state again; yield one line per field of a plan that differs.

    Raises: ValueError if there is nothing to plan, so that a file of another kind does not pass.
    """
    n_ticks = 0
    for number, line, state in recorded(lines):
        n_ticks += 1
        again = json.loads(json.dumps(pack_plan(compose(state.config.stages)(state))))
        for field, value in line["plan"].items():
            if again.get(field) != value:
                yield f"line {number}, tick {line['tick']}: {field}: recorded {value!r}, now {again.get(field)!r}"
    if not n_ticks:
        raise ValueError(NO_TICKS)


def shown(lines: Iterable[str], tick: int | None, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield each tick, or one: its sessions, and its plan in the words of `explain`, planned with other settings.

    Raises: ValueError for a setting that the policy does not have.
    """
    for _, _, state in recorded(lines):
        if tick is not None and state.tick != tick:
            continue
        try:
            state = state._replace(config=dataclasses.replace(state.config, **settings))
        except TypeError as error:
            known = {f.name for f in dataclasses.fields(state.config)}
            wrong = ", ".join(name for name in settings if name not in known)
            raise ValueError(f"{wrong}: not among {', '.join(sorted(known))}") from error
        plan = compose(state.config.stages)(state)
        shown_tick = {
            "tick": state.tick,
            "now_ns": state.now_ns,
            "sessions": [_changed_fields(view, state.now_ns) for view in state.sessions],
            "learned": _learned(state),
            **explain(plan),
            "n_repeats": plan.n_repeats,
        }
        if plan.guard is not None:
            shown_tick["guard"] = {k: v for k, v in guard_words(plan.guard).items() if k not in DEPRECATED}
        yield json.dumps(shown_tick, indent=1)


def _learned(state: SchedulerState) -> dict[str, Any]:
    """What was measured while the daemon ran, as far as the policy uses it beside a chat, and the step predicted by it.
    `guard` has the rest.
    """
    cost = state.cost
    step_ns = max((cost.solo_step_ns(v.n_past) for v in index_of(state).streams), default=0)
    return {
        "factors": {name: round(factor, 3) for name, factor in zip(REGIMES, cost.factors, strict=True)},
        "step_ms": round(step_ns / 1e6, 4),
        "overhead_ms": round(state.overhead_ns / 1e6, 4),
        "debt_ms": round(state.memory.latency_guard.debt_ns / 1e6, 4),
    }


def _changed_fields(view: SessionView, now_ns: int) -> dict[str, Any]:
    """Return the fields of a session that differ from the defaults, by name; times as ms before the tick."""
    fields: dict[str, Any] = {}
    for name, value in view._asdict().items():
        if name.startswith("t_"):  # 0: that has not happened
            name, value = f"{name[2:-3]}_ms_ago", round((now_ns - value) / 1e6, 3) if value else None
        if value != SessionView._field_defaults.get(name):
            fields[name] = value
    return fields | {"priority": view.priority.name.lower(), "phase": view.phase.name.lower()}
