"""Pure arithmetic on token times: percentiles, gaps, and figures of one stream or one phase."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

EARLY_MS = 3000.0  # the window of "worst pause in the first 3 s"
_NS_PER_MS = 1e6


def percentile(values: Sequence[float], q: float) -> float:
    """Return the q-th percentile (0..100) by linear interpolation. NaN without values, or if any value is NaN,
    because a lost value cannot be ordered.
    """
    if not values or any(map(math.isnan, values)):
        return math.nan
    ordered = sorted(values)
    at = (len(ordered) - 1) * q / 100.0
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(values: Sequence[float]) -> float:
    return percentile(values, 50)


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over repeats."""

    n: int
    median: float
    low: float  # lowest
    high: float  # highest


def spread(values: Iterable[float]) -> Spread:
    """Summarise repeats; NaN values (repeats that failed) do not count."""
    kept = [v for v in values if not math.isnan(v)]
    if not kept:
        return Spread(0, math.nan, math.nan, math.nan)
    return Spread(len(kept), median(kept), min(kept), max(kept))


def ratio(a: float, b: float) -> float:
    """Return a / b, or NaN if that is undefined."""
    return a / b if b and not math.isnan(a) and not math.isnan(b) else math.nan


@dataclass(frozen=True, slots=True)
class StreamLog:
    """The client's view of one request. Times are ns of its monotonic clock."""

    name: str
    is_interactive: bool
    n_prompt: int
    n_asked: int
    t_sent: int
    t_tokens: tuple[int, ...]
    t_done: int  # 0: it did not end
    error: str = ""
    n_reported: int = -1  # tokens that the server reports as generated; -1: no report

    @property
    def is_complete(self) -> bool:
        """Whether it ended without error, with every requested token."""
        return not self.error and self.t_done > 0 and len(self.t_tokens) == self.n_asked

    def ms_to(self, index: int) -> float:
        """Return ms from sending to the token of that index (negative: from the end); NaN without it."""
        try:
            return (self.t_tokens[index] - self.t_sent) / _NS_PER_MS
        except IndexError:
            return math.nan

    @property
    def ttft_ms(self) -> float:
        return self.ms_to(0)

    @property
    def ttf5_ms(self) -> float:
        """ms from sending to the fifth token."""
        return self.ms_to(4)

    @property
    def stream_ms(self) -> float:
        """ms from sending to the last token."""
        return self.ms_to(-1)

    @property
    def gaps_ms(self) -> list[float]:
        t = self.t_tokens
        return [(b - a) / _NS_PER_MS for a, b in pairwise(t)]

    def worst_ms(self, within_ms: float = math.inf) -> float:
        """Return the longest gap among those that began within that time of sending; NaN without gaps."""
        t, limit = self.t_tokens, within_ms * _NS_PER_MS
        gaps = [b - a for a, b in pairwise(t) if a - self.t_sent <= limit]
        return max(gaps) / _NS_PER_MS if gaps else math.nan


@dataclass(frozen=True, slots=True)
class PhaseLog:
    """One phase of a scenario on one server."""

    t_start: int
    streams: tuple[StreamLog, ...]
    server_cpu_s: float = math.nan
    client_cpu_s: float = math.nan
    foreign_cpu_s: float = math.nan  # of processes other than server and client
    rss_mb: float = math.nan
    t_end: int = 0
    counters: dict[str, float] = field(default_factory=dict)  # differences of the server's own metrics over the phase

    def __getitem__(self, name: str) -> StreamLog:
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise KeyError(name)

    def named(self, prefix: str) -> list[StreamLog]:
        return [s for s in self.streams if s.name.startswith(prefix)]

    @property
    def makespan_ms(self) -> float:
        """ms from the start to the last event of all streams; to the phase's end if a stream did not end."""
        ends = [s.t_done or self.t_end or (s.t_tokens[-1] if s.t_tokens else s.t_sent) for s in self.streams]
        return (max(ends, default=self.t_end or self.t_start) - self.t_start) / _NS_PER_MS

    @property
    def n_failed(self) -> int:
        return sum(not s.is_complete for s in self.streams)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens divided by the makespan."""
        return ratio(sum(len(s.t_tokens) for s in self.streams) * 1000.0, self.makespan_ms)

    @property
    def steady_tokens_per_s(self) -> float:
        """Generated tokens a second while all streams decode, so no prompt is being read and none has ended. NaN if a
        stream never did.
        """
        if not all(s.t_tokens for s in self.streams):
            return math.nan
        begin = max((s.t_tokens[0] for s in self.streams), default=0)
        end = min((s.t_tokens[-1] for s in self.streams), default=0)
        n = sum(1 for s in self.streams for t in s.t_tokens if begin < t <= end)
        return ratio(n * 1e9, end - begin) if end > begin else math.nan


def stream_figures(stream: StreamLog, prefix: str = "") -> dict[str, float]:
    """Return the figures that are reported for every interactive stream, under names that end in their unit."""
    gaps = stream.gaps_ms
    figures = {
        "ttft_ms": stream.ttft_ms,
        "ttf5_ms": stream.ttf5_ms,
        "itl_p50_ms": percentile(gaps, 50),
        "itl_p95_ms": percentile(gaps, 95),
        "itl_p99_ms": percentile(gaps, 99) if len(gaps) >= 100 else math.nan,  # of fewer: about the longest
        "pause_3s_ms": stream.worst_ms(EARLY_MS),
        "pause_ms": stream.worst_ms(),
        "stream_ms": stream.stream_ms,
    }
    return {prefix + name: value for name, value in figures.items()}


def against_solo(loaded: StreamLog, *solos: StreamLog, prefix: str = "") -> dict[str, float]:
    """Return how much worse a stream fared than the same stream alone, or than the mean of several runs alone.

    Pauses are in solo steps (the median gap).
    """
    own, solo = stream_figures(loaded), mean_of([stream_figures(run) for run in solos])
    step = solo["itl_p50_ms"]
    figures = {
        "ttft_x": ratio(own["ttft_ms"], solo["ttft_ms"]),
        "p95_x": ratio(own["itl_p95_ms"], solo["itl_p95_ms"]),
        "pause_3s_x": ratio(own["pause_3s_ms"], step),
        "pause_x": ratio(own["pause_ms"], step),
        "stream_x": ratio(own["stream_ms"], solo["stream_ms"]),
    }
    return {prefix + name: value for name, value in figures.items()}


def mean_of(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each figure; NaN if any value is."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def worst_of(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the largest of each figure; NaN if any value is, so that a lost stream cannot hide."""
    return {name: max((row[name] for row in rows), key=lambda v: math.inf if math.isnan(v) else v) for name in rows[0]}


def phase_figures(phase: PhaseLog) -> dict[str, float]:
    """Return the figures that are reported for every loaded phase."""
    n_tokens = sum(len(s.t_tokens) for s in phase.streams)
    return {
        "makespan_ms": phase.makespan_ms,
        "tok_s": phase.tokens_per_s,
        "failed_n": float(phase.n_failed),
        "server_cpu_s": phase.server_cpu_s,
        "server_cpu_cores": ratio(phase.server_cpu_s * 1000.0, phase.makespan_ms),
        "client_cpu_share": ratio(phase.client_cpu_s * 1000.0, phase.makespan_ms),
        "foreign_cores": ratio(phase.foreign_cpu_s * 1000.0, phase.makespan_ms),
        "server_cpu_ms_per_token": ratio(phase.server_cpu_s * 1000.0, n_tokens),
        "rss_mb": phase.rss_mb,
        **_own_figures(phase.counters),
    }


def _own_figures(counters: dict[str, float]) -> dict[str, float]:
    """Return our daemon's figures about itself: the time between decode calls, the device's idle time, copies of KV,
    memory traffic.
    """
    overhead, ticks = counters.get("tick_overhead_ms.sum"), counters.get("tick_ms.sum")
    if overhead is None or not ticks:
        return {}
    engine_ms, moved = counters.get("engine_ms_total", math.nan), counters.get("bmt_moved_bytes_total", math.nan)
    idle = 1.0 - ratio(engine_ms, counters.get("serving_ms_total", 0.0))
    copied = ratio(counters.get("kv_copied_bytes_total", math.nan), counters.get("kv_bytes_total", 0.0))
    return {
        "tick_overhead_us": ratio(overhead * 1000.0, counters.get("tick_overhead_ms.count", 0.0)),
        "tick_overhead_share": overhead / ticks,
        "device_idle_share": idle if math.isnan(idle) else max(0.0, idle),
        "copy_free_ratio": copied if math.isnan(copied) else max(0.0, 1.0 - copied),
        "memory_gb_s": ratio(moved / 1e6, engine_ms),
    }
