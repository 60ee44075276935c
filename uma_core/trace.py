"""Recordings of ticks: (state, plan, result) as JSON lines that can be replayed, and as a timeline for Perfetto.

`python -m uma_core.trace --help` explains the commands.

Rules: a line is self-contained except for its context (device, configuration, cost tables), which is written once and
referred to by number. Everything in `memory` must be a NamedTuple of CARRIED, a number, a string, a tuple or a dict of
those.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TextIO

from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.model import REGIMES, CostModel
from uma_core.policy.memory import Ledger, PolicyMemory, TbtMemory
from uma_core.policy.pipeline import DEPRECATED, compose, explain, guard_words
from uma_core.policy.plan import Plan, PlanItem, TbtDecision
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
RING_TICKS = 20_000
US = 1000.0


class Tick(NamedTuple):
    """One tick as the executor saw it."""

    state: SchedulerState
    plan: Plan
    reports: tuple[CallReport, ...]


# ---- values to JSON and back


def pack(value: Any) -> Any:
    """Turn a value of a state or plan into JSON. Raises: ValueError for a value that could not be read back."""
    if isinstance(value, IntEnum):
        return int(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "_fields"):
        name = type(value).__name__
        if name not in CARRIED:
            raise ValueError(f"{name} is not among trace.CARRIED")
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


# ---- recording


class Sink(Protocol):
    """Takes an executor's reports about its ticks, on the compute thread. A sink keeps references, and encodes them on
    another thread.
    """

    is_every_tick: bool  # also gets ticks that only repeat an earlier plan; each of them is then planned again

    def __call__(self, state: SchedulerState, plan: Plan, reports: tuple[CallReport, ...]) -> None: ...

    def name(self, sid: int, request_id: str) -> None:
        """Note the request id of a session."""


class Recorder:
    """Keeps the last ticks in memory."""

    def __init__(self, n_ticks: int = RING_TICKS, is_every_tick: bool = True) -> None:
        self.is_every_tick = is_every_tick
        self.ticks: deque[Tick] = deque(maxlen=n_ticks)
        self.names: dict[int, str] = {}  # request ids by session number

    def __call__(self, state: SchedulerState, plan: Plan, reports: tuple[CallReport, ...]) -> None:
        self.ticks.append(Tick(state, plan, reports))

    def name(self, sid: int, request_id: str) -> None:
        self.names[sid] = request_id


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


def encoded(recorder: Recorder, form: str, cap_bytes: int) -> bytes:
    """Return a recording as the JSON fields of a reply, without braces; `form` is "chrome" or "jsonl". Ticks that
    exceed the cap are left out.

    Encodes in small slices, so that other threads get the GIL in between.
    """
    ticks = list(recorder.ticks)
    lines = Lines()
    heads = [json.dumps(event) for event in _heads(recorder.names)] if form == "chrome" else []
    n_bytes, n_ticks, parts = 0, 0, heads
    for tick in ticks:
        more = [json.dumps(event) for event in _tick_events(tick)] if form == "chrome" else list(lines.of(tick))
        n_bytes += sum(map(len, more)) + len(more)
        if n_bytes > cap_bytes:
            break
        parts += more
        n_ticks += 1
    name = "traceEvents" if form == "chrome" else "lines"
    tail = ',"displayTimeUnit":"ms"' if form == "chrome" else ""
    return f'"{name}":[{",".join(parts)}]{tail},"n_ticks":{n_ticks},"n_left_out":{len(ticks) - n_ticks}'.encode()


# ---- replay


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
        raise ValueError("it has no ticks (a daemon without requests records none)")


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
            raise ValueError(f"{', '.join(settings)}: not among the scheduler's settings") from error
        plan = compose(state.config.stages)(state)
        shown_tick = {
            "tick": state.tick,
            "now_ns": state.now_ns,
            "sessions": [_changed_fields(view) for view in state.sessions],
            "learned": _learned(state),
            **explain(plan),
            "n_repeats": plan.n_repeats,
        }
        if plan.guard is not None:
            shown_tick["guard"] = {k: v for k, v in guard_words(plan.guard).items() if k not in DEPRECATED}
        yield json.dumps(shown_tick, indent=1)


def _learned(state: SchedulerState) -> dict[str, Any]:
    """What was measured while the daemon ran, as far as the policy uses it beside a chat. `guard` has the rest."""
    cost = state.cost
    return {
        "factors": {name: round(factor, 3) for name, factor in zip(REGIMES, cost.factors, strict=True)},
        "overhead_ms": round(state.overhead_ns / 1e6, 4),
        "debt_ms": round(state.memory.latency_guard.debt_ns / 1e6, 4),
    }


def _changed_fields(view: SessionView) -> dict[str, Any]:
    """Return the fields of a session that differ from the defaults, by name."""
    fields = {k: v for k, v in view._asdict().items() if v != SessionView._field_defaults.get(k)}
    return fields | {"priority": view.priority.name.lower(), "phase": view.phase.name.lower()}


def _tick(text: str) -> int:
    """Read a tick number. Raises: ValueError."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"TICK is a number, not {text!r}") from None


def _settings(texts: Iterable[str]) -> dict[str, Any]:
    """Read settings. Raises: ValueError."""
    pairs = (text.partition("=") for text in texts)
    return {name: json.loads(value) for name, _, value in pairs}


PIPE_CLOSED = 141  # 128 + SIGPIPE, like a program that the signal ended
USAGE = """usage: python -m uma_core.trace replay FILE
       python -m uma_core.trace show FILE [TICK] [SETTING=VALUE ...]"""
HELP = f"""{USAGE}

FILE is a recording: written by `uma-ctl trace --jsonl --out FILE` or by the daemon's option log.trace.

replay  Plan every recorded state again. Exit status: 0 if every plan is the same, 1 if one differs, 2 if FILE is not a
        recording.
show    Print the sessions and the plan of each tick, or of TICK alone. With settings, such as starvation_ticks=16 or
        guard_cap=1.5, the plan is made with these. Exit status: 0; 1 if FILE does not have TICK; 2 if FILE is not a
        recording or an argument is invalid."""


def main(argv: list[str]) -> int:
    if any(text in ("-h", "--help") for text in argv):
        print(HELP)
        return 0
    command, path, *more = (*argv, "", "")
    if command not in ("replay", "show") or not path or (command == "replay" and any(more)):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            status = _replay(file, path) if command == "replay" else _show(file, path, [text for text in more if text])
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has closed the pipe; buffered text has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        print(f"{path}: {error.strerror}", file=sys.stderr)
        return 2
    except (ValueError, KeyError, TypeError) as error:
        print(f"{path} is not a recording of this version, or a setting is wrong: {error}", file=sys.stderr)
        return 2


def _replay(file: TextIO, path: str) -> int:
    found = list(differences(file))
    for text in found:
        print(text)
    print(f"{path}: {'plans differ: ' + str(len(found)) if found else 'every plan is the same'}")
    return 1 if found else 0


def _show(file: TextIO, path: str, more: list[str]) -> int:
    """Show ticks. Returns 1 if the recording does not have the tick."""
    ticks = [_tick(text) for text in more if "=" not in text]
    n = 0
    for text in shown(file, ticks[0] if ticks else None, _settings(text for text in more if "=" in text)):
        print(text)
        n += 1
    if not n:
        file.seek(0)
        numbers = [state.tick for _, _, state in recorded(file)]
        has = f"ticks {numbers[0]} to {numbers[-1]}, without those that repeated a plan" if numbers else "no ticks"
        print(f"{path} has {has}", file=sys.stderr)
    return 0 if n else 1


# ---- timeline


def _heads(names: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """Yield the rows' names: sessions are named by their requests."""
    for pid, name in ((1, "ticks"), (2, "sessions")):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    for sid, name in names.items():
        yield {"ph": "M", "pid": 2, "tid": sid, "name": "thread_name", "args": {"name": name}}


def _tick_events(tick: Tick) -> Iterator[dict[str, Any]]:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
