"""The `status` dict of docs/PROTOCOL.md, built from views and metrics. Never blocks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import uma_core.metrics.catalog as m
from uma_core import __version__
from uma_core.clock import Clock
from uma_core.log import installed
from uma_core.metrics.export import to_json, to_prometheus
from uma_core.server.lifecycle.host import Host
from uma_core.server.lifecycle.lifecycle import DRAINING, READY, STARTING, Lifecycle
from uma_core.server.lifecycle.reload import Reloader
from uma_core.server.memory.budget import locked_bytes, mapped_bytes, resident_bytes
from uma_core.types import PRIORITIES

PROMISED_SHARE = 0.95  # the promise: this share of interactive gaps stays within the limit
JUDGED_FROM = 20  # gaps; with fewer, a single long gap would miss the promise


class Status:
    """Builds the dict for each request anew, in a few hundred microseconds."""

    def __init__(
        self, host: Host, lifecycle: Lifecycle, reloader: Reloader, registry: m.Registry, clock: Clock
    ) -> None:
        self.n_connections: Callable[[], int] = lambda: 0
        self.gateway: Callable[[], dict[str, Any] | None] = lambda: None
        self.start_ms = 0.0  # from process start to the first `ready`
        self._host = host
        self._lifecycle = lifecycle
        self._reloader = reloader
        self._registry = registry
        self._clock = clock
        self._t0 = clock.now_ns()
        self._ready = registry.gauge(m.READY)
        self._uptime = registry.gauge(m.UPTIME)
        self._rss = registry.gauge(m.RESIDENT_BYTES)
        self._generation = registry.gauge(m.GENERATION)
        self._depth = {priority: registry.gauge(m.QUEUE_DEPTH, lane=priority) for priority in PRIORITIES}
        self._phases = {phase: registry.gauge(m.SESSIONS, phase=phase) for phase in m.SESSIONS.labels["phase"]}
        self._cells = [
            registry.gauge(g) for g in (m.KV_CELLS_TOTAL, m.KV_CELLS_USED, m.KV_CELLS_RESERVED, m.KV_CELLS_SHARED)
        ]
        self._memory = {p: registry.gauge(m.MEMORY_BYTES, purpose=p) for p in ("weights", "kv", "compute")}
        self._solo = registry.gauge(m.SOLO_STEP)
        self._guard = registry.gauge(m.PREFILL_GUARD_ACTIVE)
        self._warnings = registry.counter(m.ALLOC_WARNINGS)
        self._log_dropped = registry.counter(m.LOG_DROPPED)
        registry.on_collect(self._collect)

    def _collect(self) -> None:
        """Set the gauges that are cheaper to read on demand than to keep up to date."""
        self._ready.set(self._lifecycle.state == READY)
        self._uptime.set(self._clock.now_ns() - self._t0)
        self._rss.set(resident_bytes())
        self._generation.set(self._reloader.generation)
        output = installed()
        self._log_dropped.value = output.n_dropped if output is not None else 0
        view, engine = self._host.view, self._host.engine
        if view is None or engine is None:
            return
        self._warnings.value = engine.slot_warnings()
        self._registry.info |= {"version": __version__, "model": view.model["name"], "backend": engine.info.backend}
        for priority, gauge in self._depth.items():
            gauge.set(view.priorities[priority]["queued"])
        for phase, gauge in self._phases.items():
            gauge.set(view.phases.get(phase, 0))
        for gauge, key in zip(self._cells, ("cells_total", "used", "reserved", "shared"), strict=True):
            gauge.set(view.kv[key])
        for purpose, gauge in self._memory.items():
            gauge.set(view.memory[purpose])
        self._solo.set(view.solo_step_ns)
        self._guard.set(bool(view.tick["guard"] == "active" and view.tick["guard_detail"]["holds_prompt"]))

    def on_ready(self) -> None:
        """Call when the first model is loaded."""
        self.start_ms = round((self._clock.now_ns() - self._t0) / 1e6, 1)

    def health(self) -> dict[str, Any]:
        self._lifecycle.check()  # so that a state is logged whenever it is reported
        state = self._lifecycle.state
        return {"state": state, "is_ready": state == READY}

    def status(self) -> dict[str, Any]:
        self._lifecycle.check()
        view = self._host.view
        status: dict[str, Any] = {
            "state": self._lifecycle.state,
            "reason": self._lifecycle.reason(),
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round((self._clock.now_ns() - self._t0) / 1e9, 1),
            "start_ms": self.start_ms,
            "generation": self._reloader.generation,
            "residency": self._residency(),
            "reload": self._reloader.report(),
        }
        if self._lifecycle.state == DRAINING:
            status["drain"] = self._lifecycle.progress()
        gateway = self.gateway()
        if gateway is not None:
            status["http"] = gateway
        if self._lifecycle.state == STARTING:
            status["load_share"] = round(self._host.progress, 3)
        engine = self._host.engine
        if view is None or engine is None:
            return status | {"memory": {"rss": resident_bytes()}}
        info = engine.info
        return status | {
            "model": {**view.model, "is_demo": self._host.is_demo},
            "backend": info.backend,
            "devices": list(info.devices),
            "engine": view.engine,
            "lanes": view.priorities,
            "sessions": {**view.phases, "connections": self.n_connections()},
            "retiring": self._host.retiring,
            "clients": view.clients,
            "latency": self._latency(),
            "tick": view.tick,
            "speculation": view.speculation,
            "kv": view.kv,
            "memory": {**view.memory, "rss": resident_bytes()},
        }

    def _residency(self) -> dict[str, Any]:
        """Return how much of the weights is in memory, as the system reports it, and the variables that the backends
        loaded with.
        """
        view = self._host.view
        mapped = mapped_bytes(view.model["path"]) if view is not None else None
        environ = {name: value for name, value in sorted(os.environ.items()) if name.startswith("GGML_")}
        return {"mapped": mapped, "locked": locked_bytes(), "environ": environ}

    def _latency(self) -> dict[str, Any]:
        snapshot = self._registry.snapshot()
        solo_ns = self._host.view.solo_step_ns if self._host.view else 0
        latency: dict[str, Any] = {"solo_itl_ms": round(solo_ns / 1e6, 3)}
        ttft = snapshot.merged(m.TTFT, is_recent=True)
        if ttft.n_values:
            latency["ttft_ms"] = _quantiles(ttft)
        gaps = snapshot.recent[m.INTER_TOKEN.name, ("interactive",)]
        if gaps.n_values:
            latency["itl_ms"] = _quantiles(gaps)
        return latency | verdict(snapshot.merged(m.GAP_STRETCH, is_recent=True))

    def metrics(self) -> dict[str, Any]:
        return to_json(self._registry.snapshot())

    def prometheus(self) -> str:
        return to_prometheus(self._registry.snapshot())


def verdict(stretch: m.Distribution) -> dict[str, Any]:
    """Return whether the promise about gaps was kept in the last minute. Exact: 1.0 is a bound of the buckets."""
    n = stretch.n_values
    if n < JUDGED_FROM:
        return {"slo_verdict": "no data"}
    share = sum(stretch.counts[: stretch.bounds.index(1.0) + 1]) / n
    return {"within_limit": round(share, 4), "slo_verdict": "met" if share >= PROMISED_SHARE else "missed"}


def _quantiles(d: m.Distribution) -> dict[str, float]:
    values = {"p50": d.quantile(0.5), "p95": d.quantile(0.95), "p99": d.quantile(0.99), "max": d.highest}
    return {name: round(ns / 1e6, 3) for name, ns in values.items()}
