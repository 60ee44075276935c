"""Writes docs/RELIABILITY.md from the results: promises beside what was observed."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perf.stats import median

HEAD = """<!-- Written by `python -m perf.reliability`. Do not edit: run it again. -->

# Reliability

This page reports how we tried to break a running daemon, and what happened: a row for each promise, then the details.
`python -m perf.reliability` does it all and writes this page; `tests/daemon` checks the same promises in less time.

The daemon ran on the small trained models with one compute thread, on {n_cores} cores ({cpu}) that it shared with the
clients and with other work, on {date}, commit {commit}. Times are those of a busy machine.

"""


class Row:
    """One promise."""

    def __init__(self, promise: str, seen: str, is_kept: bool) -> None:
        self.promise = promise
        self.seen = seen
        self.is_kept = is_kept


def page(results: Mapping[str, Any]) -> str:
    rows = [row for name, make in _ROWS.items() if name in results for row in make(results[name])]
    out = [
        HEAD.format(**results["machine"]),
        _kept_from_before(results),
        "| promise | seen | kept |\n| --- | --- | --- |\n",
    ]
    out += [f"| {row.promise} | {row.seen} | {'yes' if row.is_kept else '**no**'} |\n" for row in rows]
    out += [_details(name, results[name]) for name in _TITLES if name in results]
    return "".join(out)


def _kept_from_before(results: Mapping[str, Any]) -> str:
    """Return a paragraph about the trials of earlier runs, which `--only` keeps; "" if all are of this commit."""
    now = results["machine"]["commit"]
    found = [(name, results[name]) for name in _ROWS if name in results and results[name].get("commit", now) != now]
    words = ", ".join(f"{name.replace('_', ' ')} ({r['date']}, commit {r['commit']})" for name, r in found)
    return textwrap.fill(f"Kept from earlier runs: {words}.", 120) + "\n\n" if found else ""


def is_kept(results: Mapping[str, Any]) -> bool:
    return all(row.is_kept for name, make in _ROWS.items() if name in results for row in make(results[name]))


def _clean(r: Mapping[str, Any]) -> Row:
    first = f": {r['violations'][0]}" if r["violations"] else ""
    return Row("… and nothing else was broken", f"{r['n_violations']} violations{first}", not r["n_violations"])


def _reloads(r: Mapping[str, Any]) -> list[Row]:
    lost = r["n_streams"] - r["finals"].get("length", 0)
    streams = f"{r['n_streams']} streams, {r['n_across']} of them across a reload"
    young, before, after = r["rss_mb"]
    growth = after / before - 1
    seen = (
        f"{before:.0f} MiB → {after:.0f} MiB ({growth:+.1%}); {young:.0f} MiB before the {r['n_warm_up']} reloads "
        "of warm-up"
    )
    wrong = f"{r['n_wrong_model']} streams with one, {r['n_unjudged']} not judged"
    return [
        Row(
            f"{r['n_reloads']} reloads under 8 continuous streams: none lost or cut",
            f"{streams}; {lost} lost or cut",
            not lost and r["n_across"] > 0,
        ),
        Row(
            "no token of a wrong model within a stream",
            wrong,
            not r["n_wrong_model"] and r["n_unjudged"] < r["n_streams"],
        ),
        Row("memory returns to within 5 %", seen, growth <= 0.05),
        Row(
            "descriptors return to their number",
            " → ".join(map(str, r["descriptors"])),
            r["descriptors"][0] == r["descriptors"][1],
        ),
        _clean(r),
    ]


def _drains(r: Mapping[str, Any]) -> list[Row]:
    took = f"median {r['took_ms']['p50']:.0f} ms, longest {r['took_ms']['max']:.0f} ms"
    ended = f"{r['n_accepted']} accepted, {r['n_ended']} ended"
    return [
        Row(
            f"a drain under a storm ends within its deadline ({r['deadline_ms']:.0f} ms) and one tick",
            took,
            r["late_ms_max"] <= 500,
        ),
        Row("every accepted request gets its final event", ended, r["n_accepted"] == r["n_ended"] > 0),
        _clean(r),
    ]


def _restarts(r: Mapping[str, Any]) -> list[Row]:
    start = f"start to ready: median {r['start_ms']['p50']:.0f} ms, longest {r['start_ms']['max']:.0f} ms"
    seen = f"{r['n_eof']} of {r['n_kills']}; {start}"
    return [
        Row("kill -9: clients see the end, the stale socket is replaced", seen, r["n_eof"] == r["n_kills"]),
        _clean(r),
    ]


def _faults(r: Mapping[str, Any]) -> list[Row]:
    what = (
        "failing and hanging decode calls, storms of full ones, allocation failures, slow and full disks, EMFILE, "
        "ENOBUFS, dying clients"
    )
    return [
        Row(
            f"injected faults ({what}): no hang, no leak, coded errors, other streams byte for byte the same",
            *_tests(r),
        )
    ]


def _supervision(r: Mapping[str, Any]) -> list[Row]:
    return [
        Row(
            "signals, socket activation, sd_notify and watchdog, restart, access, against a small supervisor",
            *_tests(r),
        )
    ]


def _tests(r: Mapping[str, Any]) -> tuple[str, bool]:
    skipped = f", {r['n_skipped']} skipped" if r["n_skipped"] else ""
    return f"{r['n_tests'] - r['n_violations']} of {r['n_tests']} tests pass{skipped}", not r["n_violations"] and r[
        "n_tests"
    ] > 0


def _second(r: Mapping[str, Any]) -> list[Row]:
    return [
        Row("two daemons on one socket: the second refuses", f"exit status {r['exit_status']}", not r["n_violations"])
    ]


def _status(r: Mapping[str, Any]) -> list[Row]:
    ms, longest_s = r["status_ms"], r["longest_call_ms"] / 1000
    seen = (
        f"p50 {ms['p50']:.1f} ms, p99 {ms['p99']:.1f} ms, max {ms['max']:.1f} ms; longest decode call {longest_s:.1f} s"
    )
    is_kept = ms["p99"] < 50 and longest_s >= 1  # shorter calls would try nothing
    return [Row("`status` answers in 50 ms while decode calls of seconds run (connect included)", seen, is_kept)]


def _thousands(r: Mapping[str, Any]) -> list[Row]:
    rss, growth = r["rss_mb"], r["rss_mb"][2] - r["rss_mb"][0]
    seen = f"{rss[0]:.1f} → {rss[1]:.1f} → {rss[2]:.1f} MiB; descriptors {r['descriptors'][0]} → {r['descriptors'][1]}"
    is_flat = growth <= 0.05 * rss[0] and r["descriptors"][1] <= r["descriptors"][0] and not r["kv_reserved"]
    return [Row(f"{r['n']} requests and {r['n']} connections leave nothing behind", seen, is_flat), _clean(r)]


def _idle(r: Mapping[str, Any]) -> list[Row]:
    return [
        Row("idle: below 0.5 % of one core", f"{r['cpu_percent']} % over {r['seconds']:.0f} s", r["cpu_percent"] < 0.5)
    ]


def _soak(r: Mapping[str, Any]) -> list[Row]:
    early, late = r["rss_mb"]
    half = len(r["points"]) // 2
    counts = [p["descriptors"] for p in r["points"]]
    few, many = median(counts[:half]), median(counts[half:])
    grown = f"{early:.1f} → {late:.1f} MiB ({late / early - 1:+.1%})"
    if "own_mb" in r:
        grown += ", of which not of mapped files {:.1f} → {:.1f} MiB".format(*r["own_mb"])
    n_broken = r["plan_violations"] + r["alloc_warnings"]
    return [
        Row(
            f"a soak of {r['minutes']:g} minutes: exactly one final event per accepted request",
            f"{r['n_visits']} visits, {r['n_accepted']} accepted, {r['n_ended']} ended",
            r["n_accepted"] == r["n_ended"] > 0,
        ),
        Row("no memory growth: second half against first, at rest", grown, late <= 1.05 * early),
        Row("no descriptor growth", f"{few:.0f} → {many:.0f} (at rest {min(counts)} to {max(counts)})", many <= few),
        Row(
            "no plan broke its contract, no batch was without room",
            f"{r['plan_violations']}, {r['alloc_warnings']}",
            not n_broken,
        ),
        _clean(r),
    ]


_ROWS: dict[str, Callable[[Mapping[str, Any]], list[Row]]] = {
    "reloads": _reloads,
    "drains": _drains,
    "restarts": _restarts,
    "second_daemon": _second,
    "status_latency": _status,
    "thousands": _thousands,
    "idle": _idle,
    "faults": _faults,
    "supervision": _supervision,
    "soak": _soak,
}
_TITLES = {
    "reloads": "Reloads",
    "drains": "Drains",
    "faults": "Injected faults",
    "supervision": "Supervision",
    "soak": "The soak",
}


_RELOADS = """
A reload took {p50:.0f} ms (median), {max:.0f} ms at most. Every second one changed the model (dense ↔ mixture of
experts). Afterwards both models read each stream's text and rated its tokens: a token that lies more than a near tie
below a model's choice is not of that model.
"""
_TESTS = """
These tests of `tests/daemon` do this, through hooks inside the daemon, with the simulated engine and with the real one:

"""
_POINTS = """
At rest, every minute or so (all clients paused, the same model loaded anew, caches cleared), resident memory in MiB:

"""
_COLUMNS = {
    "minutes": "minutes",
    "rss_mb": "all",
    "own_mb": "own memory",
    "file_mb": "mapped files",
    "descriptors": "descriptors",
}
_LISTS = {
    "finals": "Final events",
    "errors": "Refusals and errors",
    "visits": "Visits by kind",
    "operator": "What the operator did",
}


def _points(points: Sequence[Mapping[str, float]]) -> str:
    """Return a table of the recorded points."""
    names = [name for name in _COLUMNS if name in points[0]]
    rows = [
        [_COLUMNS[name] for name in names],
        ["---"] * len(names),
        *([str(p[name]) for name in names] for p in points),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _details(name: str, r: Mapping[str, Any]) -> str:
    """Return the details for which the table has no room."""
    lines = [f"\n## {_TITLES[name]}\n"]
    if name == "reloads":
        lines.append(_RELOADS.format(**r["reload_ms"]))
    for key, title in _LISTS.items():
        if r.get(key):
            counts = ", ".join(f"{kind.replace('_', ' ')} {n}" for kind, n in r[key].items())
            lines.append("\n" + textwrap.fill(f"{title}: {counts}.", 120) + "\n")
    if name == "soak":
        how = f", in segments of {r['segment_s']:g} s with rests between them" if r["segment_s"] else ""
        lines.append(f"\nOn {r['date']}, commit {r['commit']}{how}.\n")
        lines.append(_POINTS)
        lines.append(_points(r["points"]))
    if r.get("names"):
        lines.append(_TESTS + "".join(f"- {sentence}\n" for sentence in r["names"]))
    if r["violations"]:
        lines.append("\nViolations:\n\n```json\n" + json.dumps(r["violations"], indent=1) + "\n```\n")
    return "".join(lines)
