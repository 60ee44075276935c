"""Ticks as Chrome trace events, which Perfetto draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from uma_core.policy.plan import Plan, PlanItem
from uma_core.policy.state import CallReport
from uma_core.trace.lines import Tick
from uma_core.trace.words import explain
from uma_core.types import Phase

US = 1000.0


def heads(names: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """Yield the rows' names: sessions are named by their requests."""
    for pid, name in ((1, "ticks"), (2, "sessions")):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    for sid, name in names.items():
        yield {"ph": "M", "pid": 2, "tid": sid, "name": "thread_name", "args": {"name": name}}


def tick_events(tick: Tick) -> Iterator[dict[str, Any]]:
    """Yield a tick as Chrome trace events: its calls, rows per session, guard decisions and budgets.

    Calls are drawn one after the other from the tick's start, because engines report durations, not start times.
    """
    state, plan = tick.state, tick.plan
    t = state.now_ns / US
    total = sum(r.elapsed_ns for r in tick.reports) / US
    yield {"ph": "X", "pid": 1, "tid": 0, "name": f"tick {state.tick}", "ts": t, "dur": total, "args": explain(plan)}
    for note in plan.notes:
        yield {"ph": "i", "pid": 1, "tid": 2, "name": note, "ts": t, "s": "t"}
    yield {"ph": "C", "pid": 1, "name": "prompt budget ms", "ts": t, "args": {"run": plan.run_ns / 1e6}}
    at = t
    groups = _groups(plan)
    for i, report in enumerate(tick.reports):
        name = _name(report)
        args: dict[str, Any] = {"n_kv": report.n_kv, "predicted_ms": report.predicted_ns / 1e6}
        if report.n_chunk:
            args |= {
                "longest_ms": report.longest_ns / 1e6,
                "pieces": report.n_pieces,
                "chunk_predicted_ms": report.whole_ns / 1e6,
            }
        yield {"ph": "X", "pid": 1, "tid": 1, "name": name, "ts": at, "dur": report.elapsed_ns / US, "args": args}
        for item in groups[i] if len(groups) == len(tick.reports) else ():
            row = {"name": f"{item.phase.name.lower()} ({item.reason})", "args": {"seq": item.seq_id}}
            yield {"ph": "X", "pid": 2, "tid": item.sid, "ts": at, "dur": report.elapsed_ns / US, **row}
        at += report.elapsed_ns / US


def _name(report: CallReport) -> str:
    if report.phase is Phase.DECODE:
        return f"decode {report.n_rows} rows"
    if not report.n_chunk:
        return f"prefill {report.n_rows} tokens"
    share = report.predicted_ns / report.whole_ns if report.whole_ns else 0.0
    return f"prefill {share:.1%} of a chunk of {report.n_chunk}"


def _groups(plan: Plan) -> list[list[PlanItem]]:
    """Return the items by call, in the order in which they run; the resumable run is the last."""
    calls: dict[int, list[PlanItem]] = {}
    for item in plan.items:
        calls.setdefault(item.call, []).append(item)
    return [calls[call] for call in sorted(calls, key=lambda call: (call < 0, call))]
