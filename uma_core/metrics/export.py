"""Renders a snapshot as Prometheus text or as the documented JSON. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

from uma_core.metrics import catalog as m
from uma_core.metrics.core import Distribution, Kind, Labels, Metric, Snapshot

PREFIX = "uma_"
_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000


class Derived(NamedTuple):
    """A documented JSON name whose value is derived from other metrics."""

    name: str
    help: str
    compute: Callable[[Snapshot], Any]


def _sessions(snapshot: Snapshot, *phases: str) -> float:
    wanted = phases or m.SESSIONS.labels["phase"]
    return sum(snapshot.value(m.SESSIONS, phase) for phase in wanted)


def _bandwidth(snapshot: Snapshot) -> float:
    ns = snapshot.value(m.BMT_TIME)
    return round(snapshot.value(m.BMT_MOVED) / ns, 3) if ns else 0.0


def _idle_share(snapshot: Snapshot) -> float | None:
    """Return the share of idle device time; None before the first request."""
    serving = snapshot.value(m.SERVING_TIME)
    return round(max(0.0, 1.0 - snapshot.value(m.ENGINE_TIME) / serving), 4) if serving else None


def _copy_free(snapshot: Snapshot) -> float | None:
    """Return the share of KV that was not copied; None before the first prompt. KV copied twice counts twice."""
    whole = snapshot.value(m.KV_BYTES)
    return round(max(0.0, 1.0 - snapshot.value(m.KV_COPIED_BYTES) / whole), 4) if whole else None


def _recent(metric: Metric, q: float) -> Callable[[Snapshot], float]:
    return lambda snapshot: _scale(metric)(snapshot.merged(metric, is_recent=True).quantile(q))


DERIVED: tuple[Derived, ...] = (
    Derived("sessions", "requests in progress", _sessions),
    Derived(
        "active_sessions",
        "requests whose prompt is being read or that are being answered",
        lambda s: _sessions(s, "prefill", "decode"),
    ),
    Derived("parked_sessions", "requests whose KV left the device", lambda s: _sessions(s, "parked")),
    Derived("tokens_total", "tokens generated", lambda s: s.value(m.TOKENS_GENERATED)),
    Derived("batch_size_last", "rows of the last decode call", lambda s: s.value(m.LAST_BATCH_SIZE)),
    Derived("avg_batch", "mean rows of a decode call since the start", lambda s: round(s.merged(m.BATCH_SIZE).mean, 3)),
    Derived("decode_ms_avg", "mean decode call since the start", lambda s: _ms(s.merged(m.DECODE_CALL).mean)),
    Derived("p50_ms", "median gap between tokens, last minute", _recent(m.INTER_TOKEN, 0.50)),
    Derived("p95_ms", "95th percentile of the gap between tokens, last minute", _recent(m.INTER_TOKEN, 0.95)),
    Derived("ttf5_ms", "median time to the fifth token, last minute", _recent(m.TTF5, 0.50)),
    Derived(
        "worst_pause_ms",
        "longest gap in the first 3 s of any stream, last minute (within 5 %)",
        _recent(m.WORST_PAUSE, 1.0),
    ),
    Derived(
        "bmt_gb_per_s",
        "memory bandwidth of the last tick's engine calls, by the rows and chunks that they computed",
        _bandwidth,
    ),
    Derived(
        "device_idle_share",
        "share of the time with requests in which no engine call ran, since the start",
        _idle_share,
    ),
    Derived(
        "copy_free_ratio",
        "share of the prompts' KV that was used in place, without a copy, since the start",
        _copy_free,
    ),
    Derived(
        "prediction_error",
        "median |measured / predicted - 1|, last minute",
        _recent(m.PREDICTION_ERROR, 0.50),
    ),
)


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return the documented JSON: times in ms, labels nested, histograms as count, mean and quantiles."""
    document: dict[str, Any] = dict(snapshot.info)
    document.update((derived.name, derived.compute(snapshot)) for derived in DERIVED)
    for metric in snapshot.metrics:
        for labels in metric.label_sets():
            _put(document, (metric.json_name, *labels), _json_value(snapshot, metric, labels))
    return document


def to_prometheus(snapshot: Snapshot) -> str:
    """Return the text format 0.0.4: base units, cumulative buckets."""
    lines = [
        f"# HELP {PREFIX}info What is served.",
        f"# TYPE {PREFIX}info gauge",
        f"{PREFIX}info{_label_text(dict(snapshot.info))} 1",
    ]
    for metric in snapshot.metrics:
        name = PREFIX + metric.name
        lines += [f"# HELP {name} {_escape(metric.help, quotes=False)}", f"# TYPE {name} {metric.kind.value}"]
        for labels in metric.label_sets():
            pairs = dict(zip(metric.labels, labels, strict=True))
            if metric.kind is Kind.HISTOGRAM:
                lines += _histogram_lines(metric, pairs, snapshot.since_start[metric.name, labels])
            else:
                lines.append(
                    f"{name}{_label_text(pairs)} {_number(_base(metric, snapshot.values[metric.name, labels]))}"
                )
    return "\n".join(lines) + "\n"


def summary(metric: Metric, values: Distribution) -> dict[str, float]:
    """Return a distribution as JSON: count, mean, p50, p95, p99, max; times in ms."""
    scale = _scale(metric)
    quantiles = {f"p{round(q * 100)}": scale(values.quantile(q)) for q in (0.50, 0.95, 0.99)}
    return {"count": values.n_values, "mean": scale(values.mean), **quantiles, "max": scale(values.highest)}


def _json_value(snapshot: Snapshot, metric: Metric, labels: Labels) -> Any:
    if metric.kind is Kind.HISTOGRAM:
        return summary(metric, snapshot.since_start[metric.name, labels])
    value = snapshot.values[metric.name, labels]
    return _ms(value) if metric.unit == "seconds" else value


def _put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        document = document.setdefault(name, {})
    document[path[-1]] = value


def _histogram_lines(metric: Metric, pairs: dict[str, str], values: Distribution) -> list[str]:
    name = PREFIX + metric.name
    total = values.n_values
    cumulative = list(accumulate(values.counts))
    last = len(values.bounds) - 1
    lines = [
        f"{name}_bucket{_label_text({**pairs, 'le': _number(_base(metric, bound))})} {cumulative[i]}"
        for i, bound in enumerate(values.bounds)
        if (last - i) % metric.export_every == 0
    ]
    lines.append(f"{name}_bucket{_label_text({**pairs, 'le': '+Inf'})} {total}")
    lines.append(f"{name}_sum{_label_text(pairs)} {_number(_base(metric, values.total))}")
    lines.append(f"{name}_count{_label_text(pairs)} {total}")
    return lines


def _base(metric: Metric, value: float) -> float:
    return value / _NS_PER_S if metric.unit == "seconds" else value


def _scale(metric: Metric) -> Callable[[float], float]:
    return _ms if metric.unit == "seconds" else lambda value: round(value, 4)


def _ms(ns: float) -> float:
    return round(ns / _NS_PER_MS, 4)


def _number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1 << 53 else repr(round(value, 12))


def _label_text(pairs: dict[str, str]) -> str:
    inner = ",".join(f'{name}="{_escape(value, quotes=True)}"' for name, value in pairs.items())
    return f"{{{inner}}}" if inner else ""


def _escape(text: str, quotes: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
