"""The time between a decode call's return and the next decode call, in the real executor on the real engine.

It includes sampling, text, events, planning and batch fill. It does not include serialising and sending: the I/O thread
does these while the next call runs. Their cost to the compute thread shows in `tick_overhead_us` of the scenarios.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perf.criteria import TICK_COUNTS, TICK_TARGETS
from perf.gguf_file import model_file
from perf.load import prompt
from perf.stats import percentile
from uma_core.clock import MonotonicClock
from uma_core.config.options import EngineOptions
from uma_core.engine.select.open import open_engine
from uma_core.executor.admission import AdmissionControl, Limits
from uma_core.executor.calibration import calibrate
from uma_core.executor.executor import Executor, device_view
from uma_core.metrics.catalog import new_registry
from uma_core.policy.config import SchedulerConfig
from uma_core.session.events import Submit
from uma_core.types import Peer, Phase, Priority, Request, SamplingParams

SAMPLED = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1)


@dataclass(frozen=True, slots=True)
class TickCost:
    kind: str  # "greedy" or "sampled"
    n_seq: int
    p50_us: float
    p95_us: float
    call_ms: float  # a decode call, median
    calls_per_tick: float

    @property
    def target_us(self) -> float:
        fixed, each = TICK_TARGETS[self.kind]
        return fixed + each * self.n_seq


class _Tap:
    """Replaces a histogram and keeps every value."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def observe(self, value: float) -> None:
        self.values.append(value)


def measure(model: str, threads: int, n_ticks: int = 60) -> Iterator[TickCost]:
    """Yield costs for every count of sequences, greedy and sampled. Blocks; loads the model once."""
    path = model_file(model)
    n_seq = max(TICK_COUNTS)
    engine = open_engine(EngineOptions(model=str(path), threads=threads, n_seq=n_seq, n_ctx=n_seq * 1024))
    try:
        clock = MonotonicClock()
        cost = calibrate(engine, device_view(engine), clock, "auto")
        executor = Executor(
            engine, AdmissionControl(Limits(max_sessions=n_seq), clock), SchedulerConfig(), cost, new_registry(), clock
        )
        for kind, params in (("greedy", SamplingParams()), ("sampled", SAMPLED)):
            for count in TICK_COUNTS:
                yield _one(executor, kind, params, count, n_ticks)
    finally:
        engine.close()


def _one(executor: Executor, kind: str, params: SamplingParams, count: int, n_ticks: int) -> TickCost:
    clock = MonotonicClock()
    for i in range(count):
        text = prompt(f"{kind}/{count}/{i}", 16)
        request = Request(
            f"{kind}{count}-{i}", prompt=text, max_tokens=512, sampling=params, priority=Priority.INTERACTIVE
        )
        tokens = executor.engine.tokenize(text, False, False)
        executor.submit(Submit(1, Peer(), request, tokens, clock.now_ns()))
    while any(session.phase is not Phase.DECODE for session in executor.table) or len(executor.table) < count:
        executor.tick()
        executor.events.clear()
    kept = executor.meters.overhead, executor.meters.decode_call
    gaps, calls = _Tap(), _Tap()
    executor.meters.overhead, executor.meters.decode_call = gaps, calls  # type: ignore[assignment]
    for _ in range(n_ticks):
        executor.tick()
        executor.events.clear()  # as the I/O thread does
    executor.flush()
    executor.meters.overhead, executor.meters.decode_call = kept
    for session in executor.table:
        executor.cancel(1, session.id)
    executor.events.clear()
    microseconds = [value / 1e3 for value in gaps.values]
    per_tick = len(calls.values) / n_ticks
    return TickCost(
        kind,
        count,
        percentile(microseconds, 50),
        percentile(microseconds, 95),
        percentile(calls.values, 50) / 1e6,
        per_tick,
    )
