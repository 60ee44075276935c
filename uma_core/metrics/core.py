"""How metrics are declared and counted: cheap for the one thread that writes; readers get a copy.

Rules: one writing thread per series (no locks); readers take a `Snapshot`. Times are ns inside and seconds or ms in
exports. The sliding window is the difference between the current counts and an earlier copy, so it costs writers
nothing.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

Labels = tuple[str, ...]  # label values, in the order of the metric's declaration

DISCRETE_UNITS = frozenset({"rows", "tokens"})
PER_DECADE = 24  # bounds: neighbours differ by 10 %, so a bucket's geometric mean is within 5 % of its values
WINDOW_NS = 60_000_000_000  # a window covers between half of this and all of it


class Kind(str, Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One declared metric. Its Prometheus name is `uma_` + name; unit "seconds" means that ns are stored."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # label -> all its values
    buckets: tuple[float, ...] = ()  # inclusive upper bounds, in the stored unit
    export_every: int = 1  # Prometheus gets every n-th bound
    json: str = ""  # name in the JSON; default: the name, with _ms for _seconds

    @property
    def json_name(self) -> str:
        return self.json or self.name.replace("_seconds", "_ms")

    def label_sets(self) -> list[Labels]:
        return list(itertools.product(*self.labels.values()))


def log_buckets(low: float, high: float) -> tuple[float, ...]:
    """Return bounds in equal ratios."""
    bounds = [low]
    while bounds[-1] < high * 0.999:
        bounds.append(low * 10 ** (len(bounds) / PER_DECADE))
    return tuple(bounds)


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, n: int = 1) -> None:
        self.value += n


class Gauge:
    """The latest value."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        self.value = value


class Histogram:
    """Counts of values by bucket; the last bucket has no upper bound."""

    __slots__ = ("bounds", "counts", "highest", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0
        self.highest: float = 0

    def observe(self, value: float) -> None:
        """Count one value, in ns if the metric's unit is seconds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        if value > self.highest:
            self.highest = value


class Distribution(NamedTuple):
    """A histogram's copy, or the part of it that a window covers."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    highest: float  # exact since the start; in a window up to one bucket (10 %) too high
    is_discrete: bool  # whole numbers, one per bucket while the bounds are consecutive

    @property
    def n_values(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        n = self.n_values
        return self.total / n if n else 0.0

    def quantile(self, q: float) -> float:
        """Return the q-quantile (nearest rank): within 5 % inside the buckets' range; 0 if there are no values."""
        n = self.n_values
        if not n:
            return 0.0
        rank = max(1, min(n, -int(-q * n // 1)))
        i = bisect_left(list(itertools.accumulate(self.counts)), rank)
        if i == len(self.bounds):
            return self.highest
        middle = self.bounds[i] if self.is_discrete or i == 0 else (self.bounds[i - 1] * self.bounds[i]) ** 0.5
        return min(middle, self.highest)

    def minus(self, counts: tuple[int, ...], total: float) -> Distribution:
        """Return the values that came after an earlier copy."""
        left = tuple(now - then for now, then in zip(self.counts, counts, strict=True))
        last = max((i for i, n in enumerate(left) if n), default=-1)
        bound = self.bounds[last] if 0 <= last < len(self.bounds) else self.highest
        highest = min(bound, self.highest) if last >= 0 else 0.0
        return self._replace(counts=left, total=self.total - total, highest=highest)

    def plus(self, other: Distribution) -> Distribution:
        """Return the sum of both, which must have the same bounds."""
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return self._replace(counts=counts, total=self.total + other.total, highest=max(self.highest, other.highest))


class Snapshot(NamedTuple):
    """A copy of all series."""

    metrics: tuple[Metric, ...]
    values: Mapping[tuple[str, Labels], float]  # counters and gauges
    since_start: Mapping[tuple[str, Labels], Distribution]
    recent: Mapping[tuple[str, Labels], Distribution]  # the last 30 to 60 s
    info: Mapping[str, str]

    def value(self, metric: Metric, *labels: str) -> float:
        return self.values[metric.name, labels]

    def merged(self, metric: Metric, is_recent: bool = False) -> Distribution:
        """Return a histogram, summed over all its labels."""
        source = self.recent if is_recent else self.since_start
        first, *rest = (source[metric.name, labels] for labels in metric.label_sets())
        for other in rest:
            first = first.plus(other)
        return first


class Registry:
    """Holds one series per declared label set, all from the start, so that no series appears late."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)
        self._by_name = {metric.name: metric for metric in self._metrics}
        if len(self._by_name) != len(self._metrics):
            raise ValueError("two metrics have one name")
        self._series: dict[tuple[str, Labels], Counter | Gauge | Histogram] = {
            (metric.name, labels): _new(metric) for metric in self._metrics for labels in metric.label_sets()
        }
        self._marks: list[dict[tuple[str, Labels], tuple[tuple[int, ...], float]]] = [{}, {}]  # older, newer
        self._mark_ns = 0
        self._collectors: list[Callable[[], None]] = []
        self.info: dict[str, str] = {}

    def counter(self, metric: Metric, **labels: str) -> Counter:
        """Return the series to keep and call `add` on."""
        series = self._find(metric, labels)
        assert isinstance(series, Counter)
        return series

    def gauge(self, metric: Metric, **labels: str) -> Gauge:
        """Return the series to keep and call `set` on."""
        series = self._find(metric, labels)
        assert isinstance(series, Gauge)
        return series

    def histogram(self, metric: Metric, **labels: str) -> Histogram:
        """Return the series to keep and call `observe` on."""
        series = self._find(metric, labels)
        assert isinstance(series, Histogram)
        return series

    def on_collect(self, update: Callable[[], None]) -> None:
        """Call `update` before each snapshot, on the reader's thread, for gauges that are cheaper to read than to keep
        up to date.
        """
        self._collectors.append(update)

    def rotate(self, now_ns: int) -> None:
        """Advance the window when half of it has passed. Call it at least that often while work is done."""
        if now_ns - self._mark_ns < WINDOW_NS // 2 and self._marks[1]:
            return
        self._mark_ns = now_ns
        marks = {key: (tuple(h.counts), h.total) for key, h in self._series.items() if isinstance(h, Histogram)}
        self._marks = [self._marks[1], marks]

    def snapshot(self) -> Snapshot:
        """Copy everything. For any thread; does not block the writers."""
        for update in self._collectors:
            update()
        values = {key: s.value for key, s in self._series.items() if not isinstance(s, Histogram)}
        full = {key: self._copy(key[0], s) for key, s in self._series.items() if isinstance(s, Histogram)}
        older = self._marks[0]
        recent = {key: d.minus(*older[key]) if key in older else d for key, d in full.items()}
        return Snapshot(self._metrics, values, full, recent, dict(self.info))

    def _copy(self, name: str, series: Histogram) -> Distribution:
        return Distribution(
            series.bounds,
            tuple(series.counts),
            series.total,
            series.highest,
            self._by_name[name].unit in DISCRETE_UNITS,
        )

    def _find(self, metric: Metric, labels: Mapping[str, str]) -> Counter | Gauge | Histogram:
        if labels.keys() != metric.labels.keys():
            raise ValueError(f"{metric.name} needs the labels {', '.join(metric.labels) or 'none'}")
        return self._series[metric.name, tuple(labels[name] for name in metric.labels)]


def _new(metric: Metric) -> Counter | Gauge | Histogram:
    if metric.kind is Kind.HISTOGRAM:
        return Histogram(metric.buckets)
    return Counter() if metric.kind is Kind.COUNTER else Gauge()
