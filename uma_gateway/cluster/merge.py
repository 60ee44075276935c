"""Merges the answers of several daemons: sums of values that add up, the worst of values that do not, and each daemon's
own figures beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from uma_gateway.cluster.transport import Event, Unit
from uma_gateway.errors import GatewayError
from uma_gateway.link import content_of

Replies = list[tuple[Unit, Event]]
STATES = ("stopping", "starting", "draining", "degraded", "ready")  # the cluster has the last state of any daemon
LEAST = frozenset({"copy_free_ratio", "hit_ratio"})  # numbers that do not add up and of which the least is the worst
MOST = frozenset({"avg_batch", "device_idle_share", "prediction_error", "time_logits_to_first_chunk"})
LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
OURS = frozenset({"node", "model", "unit"})  # labels that say which daemon's sample it is
SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(\{(.*)\})? (.*)$")


def best_state(replies: Replies) -> str:
    return max((str(reply["state"]) for _, reply in replies), key=STATES.index)


def health(replies: Replies) -> Event:
    return {**replies[0][1], "state": best_state(replies), "is_ready": any(reply["is_ready"] for _, reply in replies)}


def states(replies: Replies) -> Event:
    return {**replies[0][1], "state": best_state(replies)}


def drain(replies: Replies) -> Event:
    most = max((reply.get("estimate_ms") or 0 for _, reply in replies), default=0)
    return {**states(replies), "remaining": sum(reply.get("remaining", 0) for _, reply in replies), "estimate_ms": most}


def reload(replies: Replies, refused: Sequence[tuple[Unit, GatewayError]] = ()) -> Event:
    """Return the first daemon's reply; `units` holds each daemon's own, or the error with which it refused."""
    units = {unit.name: content_of(reply) for unit, reply in replies}
    units |= {unit.name: {"error": {"code": error.code, "message": error.message}} for unit, error in refused}
    return {**replies[0][1], "units": units}


def cache(replies: Replies) -> Event:
    """Return the sums of `stats`, and for other actions the first daemon's reply."""
    merged = reload(replies)
    parts = [reply["stats"] for _, reply in replies if isinstance(reply.get("stats"), dict)]
    return {**merged, "stats": _summed(parts)} if parts else merged


def sessions(replies: Replies) -> Event:
    rows = [{**row, "unit": unit.name, "node": unit.node} for unit, reply in replies for row in reply["sessions"]]
    return {**replies[0][1], "sessions": rows}


def status(replies: Replies) -> Event:
    """Return the first daemon's status with the cluster's sums in it; `units` holds each daemon's own."""
    first = content_of(replies[0][1])
    all_of = [reply for _, reply in replies]
    merged = {**first, "state": best_state(replies), "units": {unit.name: content_of(reply) for unit, reply in replies}}
    for name in ("lanes", "sessions", "kv", "memory", "speculation"):
        parts = [reply[name] for reply in all_of if isinstance(reply.get(name), dict)]
        if parts:
            merged[name] = _summed(parts)
    merged["clients"] = _clients(reply.get("clients", []) for reply in all_of)
    merged["retiring"] = [row for reply in all_of for row in reply.get("retiring", [])]
    merged["latency"] = _worst([reply["latency"] for reply in all_of if isinstance(reply.get("latency"), dict)])
    return merged


def _summed(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return sums of the numbers, but the worst of times, shares and quantiles."""
    if "count" in parts[0] and "mean" in parts[0]:
        return _distribution(parts)
    out: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part):  # one may have users that another does not have
        values = [part[name] for part in parts if part.get(name) is not None]
        if not values:
            out[name] = None
        elif isinstance(values[0], dict):
            out[name] = _summed(values)
        elif isinstance(values[0], int | float) and not isinstance(values[0], bool):
            out[name] = _number(name, values)
        else:
            out[name] = values[0]
    return out


def _number(name: str, values: list[float]) -> float:
    if name in LEAST:
        return min(values)
    is_time = "_ms" in name and not name.endswith("_total")
    return max(values) if is_time or name in MOST else sum(values)


def _distribution(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge one histogram: the number of values, their mean, and the highest of each quantile."""
    n = sum(part["count"] for part in parts)
    mean = round(sum(part["count"] * part["mean"] for part in parts) / n, 4) if n else parts[0]["mean"]
    return {name: max(part[name] for part in parts) for name in parts[0]} | {"count": n, "mean": mean}


def _worst(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the longest times, and the least share of gaps within their limit."""
    out: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            had = out.get(name)
            if isinstance(value, dict):
                out[name] = _worst([had, value]) if isinstance(had, dict) else value
            elif isinstance(value, str):
                out[name] = "missed" if "missed" in (had, value) else value if had in (None, "no data") else had
            elif had is None:
                out[name] = value
            elif value is not None:
                out[name] = min(had, value) if name == "within_limit" else max(had, value)
    return out


def _clients(lists: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return one row per account; the share is the mean over the daemons."""
    found: dict[tuple[Any, Any], dict[str, Any]] = {}
    n = 0
    for rows in lists:
        n += 1
        for row in rows:
            key = row["uid"], row.get("account", row["pid"])
            had = found.setdefault(key, {**row, "active": 0, "queued": 0, "share": 0.0})
            for name in ("active", "queued", "share"):
                had[name] += row[name]
    for row in found.values():
        row["share"] = round(row["share"] / n, 3)
    return list(found.values())


def metrics(replies: Replies) -> Event:
    """Merge metrics. JSON: sums of numbers. Prometheus: each sample of each daemon, with its node, model and name as
    labels.
    """
    first = replies[0][1]
    if "text" in first:
        return {**first, "text": prometheus([(unit, str(reply["text"])) for unit, reply in replies])}
    return {**first, "metrics": _summed([reply["metrics"] for _, reply in replies])}


def prometheus(texts: list[tuple[Unit, str]]) -> str:
    """Merge several expositions into one: every family once, with the samples of all."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for unit, text in texts:
        family = ""
        labels = ",".join(
            f'{name}="{_escaped(value)}"'
            for name, value in (("node", unit.node), ("model", unit.model), ("unit", unit.name))
        )
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head and not any(line.split(" ", 3)[:3] == each.split(" ", 3)[:3] for each in head):
                    head.append(line)
            elif found := SAMPLE.match(line):
                inner = f"{LABEL.sub(_renamed, found[3])},{labels}" if found[3] else labels
                samples.setdefault(family or found[1], []).append(f"{found[1]}{{{inner}}} {found[4]}")
    lines = []
    for family, rows in samples.items():
        lines += [*heads.get(family, []), *rows]
    return "\n".join(lines) + "\n"


def _renamed(label: re.Match[str]) -> str:
    """Return a daemon's own label, renamed as Prometheus does where it has the name of one of ours: no sample may have
    a label twice.
    """
    return f"exported_{label[0]}" if label[1] in OURS else label[0]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def trace(replies: Replies) -> Event:
    """Return one Perfetto trace in which each daemon is a process of its own, named after it."""
    first = replies[0][1]
    if "traceEvents" not in first:
        return {**first, "lines": [{**line, "unit": unit.name} for unit, reply in replies for line in reply["lines"]]}
    events: list[dict[str, Any]] = []
    for pid, (unit, reply) in enumerate(replies, 1):
        events.append(
            {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": f"{unit.model} on {unit.node}"}}
        )
        mine = [
            event
            for event in reply["traceEvents"]
            if not (event.get("ph") == "M" and event.get("name") == "process_name")
        ]
        events += [{**event, "pid": pid} for event in mine]
    totals = {name: sum(reply.get(name, 0) for _, reply in replies) for name in ("n_ticks", "n_left_out")}
    return {**first, **totals, "traceEvents": events}
