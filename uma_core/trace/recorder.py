"""What takes an executor's ticks (`Sink`), and the recorder that keeps the last ones in memory."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from typing import Protocol

from uma_core.policy.plan import Plan
from uma_core.policy.state import CallReport, SchedulerState
from uma_core.trace import timeline
from uma_core.trace.lines import Lines, Tick

RING_TICKS = 20_000


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


def encoded(recorder: Recorder, form: str, cap_bytes: int, t_end_s: float = math.inf) -> bytes:
    """Return a recording as the JSON fields of a reply, without braces; `form` is "chrome" or "jsonl". Ticks that
    exceed the cap, or are not encoded by `t_end_s` of the monotonic clock, are left out.

    Encodes in small slices, so that other threads get the GIL in between.
    """
    ticks = list(recorder.ticks)
    lines = Lines()
    heads = [json.dumps(event) for event in timeline.heads(recorder.names)] if form == "chrome" else []
    n_bytes, n_ticks, parts = 0, 0, heads
    for tick in ticks:
        more = [json.dumps(event) for event in timeline.tick_events(tick)] if form == "chrome" else list(lines.of(tick))
        n_bytes += sum(map(len, more)) + len(more)
        if n_bytes > cap_bytes or time.monotonic() > t_end_s:
            break
        parts += more
        n_ticks += 1
    name = "traceEvents" if form == "chrome" else "lines"
    tail = ',"displayTimeUnit":"ms"' if form == "chrome" else ""
    return f'"{name}":[{",".join(parts)}]{tail},"n_ticks":{n_ticks},"n_left_out":{len(ticks) - n_ticks}'.encode()
