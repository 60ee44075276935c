"""The soak: random clients and an operator who reloads, drains and cancels at random; at rest points everything
must be back to zero.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perf.reliability.clients import visit
from perf.reliability.daemon import MOE, TINY, Daemon, running
from perf.reliability.tally import Tally
from perf.reliability.turns import Turns
from perf.stats import median
from uma_ctl.errors import CtlError

N_CLIENTS = 8
PAUSE_S = 0.25  # most time between two visits of a client: the soak should load the machine only lightly
QUIET_EVERY_S = 60.0
SETTLE_S = 5.0  # an idle daemon gives memory back after some seconds

Say = Callable[[str], None]


class Soak:
    """One daemon, `N_CLIENTS` clients, one operator."""

    def __init__(self, daemon: Daemon, seed: int, say: Say) -> None:
        self.daemon = daemon
        self.tally = Tally()
        self.points: list[dict[str, float]] = []  # at rest: minutes, MiB (its own and of mapped files), descriptors
        self._say = say
        self._stop = threading.Event()
        self._gate = threading.Event()  # cleared: clients and operator rest
        self._active_s = 0.0
        self._resting = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._client, args=(seed * 1000 + n,), daemon=True) for n in range(N_CLIENTS)
        ]
        self._threads.append(threading.Thread(target=self._operator, args=(seed,), daemon=True))

    def run(self, minutes: float, turns: Turns) -> None:
        """Run for this long, in segments; at the end of each, clients and operator rest and everything is checked."""
        total_s = minutes * 60
        between_s = min(QUIET_EVERY_S, max(1.0, total_s / 8))
        for thread in self._threads:
            thread.start()
        self._await_rest()
        while self._active_s < total_s:
            with turns.turn():
                self._segment(min(total_s - self._active_s, turns.segment_s or total_s), between_s)
            if self._active_s < total_s:
                time.sleep(turns.pause_s)
        self._stop.set()
        self._gate.set()
        for thread in self._threads:
            thread.join(120)
            if thread.is_alive():
                self.tally.violate("a client of the soak is stuck")

    def _segment(self, seconds: float, between_s: float) -> None:
        n_points = max(1, round(seconds / between_s))
        for _ in range(n_points):
            self._gate.set()
            time.sleep(seconds / n_points)
            self._gate.clear()
            self._active_s += seconds / n_points
            self._await_rest()
            self._quiet_point(self._active_s / 60)

    # the parts

    def _client(self, seed: int) -> None:
        rng = random.Random(seed)
        while self._may_go_on():
            visit(self.daemon.path, rng, self.tally)
            time.sleep(rng.random() * PAUSE_S)

    def _operator(self, seed: int) -> None:
        rng = random.Random(seed)
        actions = (
            self._reload_live,
            self._reload_model,
            self._reload_bad,
            self._drain,
            self._hang_up_signal,
            self._cancel_somebody,
        )
        while self._may_go_on():
            action = rng.choice(actions)
            try:
                action(rng)
                self.tally.add(f"operator/{action.__name__[1:]}")
            except CtlError as error:
                self.tally.violate(f"{action.__name__[1:]}: {error}")
            time.sleep(rng.random() * 2)

    def _may_go_on(self) -> bool:
        """Rest at a quiet point and between segments. False: the soak is over."""
        if not self._gate.is_set():
            self._resting.release()
            self._gate.wait()
        return not self._stop.is_set()

    def _await_rest(self) -> None:
        for _ in self._threads:
            if not self._resting.acquire(timeout=180):
                self.tally.violate("a client of the soak does not pause")

    def _quiet_point(self, minutes: float) -> None:
        """Check the daemon while clients and operator rest: anything that is still in use has leaked."""
        daemon = self.daemon
        daemon.wait_until(lambda: not daemon.status()["reload"]["is_under_way"])
        daemon.wait_until(lambda: daemon.is_idle() and daemon.status()["sessions"]["connections"] == 1)
        status, metrics = daemon.status(), daemon.metrics()
        kv = status["kv"]
        if status["state"] != "ready" or kv["reserved"] or kv["used"]:
            self.tally.violate(
                f"at rest the state is {status['state']}, {kv['reserved']} cells are reserved, {kv['used']} used"
            )
        n_accepted, n_ended = sum(metrics["requests_accepted_total"].values()), sum(metrics["requests_total"].values())
        if n_accepted != n_ended:
            self.tally.violate(f"{n_accepted} requests were accepted, {n_ended} ended")
        daemon.ask("reload", model=str(TINY))  # always the same model, so that sizes are comparable
        daemon.ask("cache", action="clear")
        time.sleep(SETTLE_S)
        own_mb, file_mb = (round(mb, 1) for mb in daemon.resident())
        memory = {"rss_mb": round(daemon.rss_mb(), 1), "own_mb": own_mb, "file_mb": file_mb}
        self.points.append({"minutes": round(minutes, 2), **memory, "descriptors": daemon.n_descriptors()})
        self._say(f"{minutes:5.1f} min: {n_ended} requests, {self.points[-1]}, {self.tally.n_violations} violations")

    # the operator's actions

    def _reload_live(self, rng: random.Random) -> None:
        self.daemon.configure(
            scheduler={"tick_budget_ms": rng.randrange(20, 80)}, limits={"max_in_flight": rng.randrange(4, 32)}
        )
        self._reload()

    def _reload_model(self, rng: random.Random) -> None:
        self._reload(model=str(rng.choice((TINY, MOE))))

    def _reload(self, **fields: Any) -> None:
        try:
            self.daemon.ask("reload", **fields)
        except CtlError as error:
            if "reload_busy" not in str(error):  # a reload by signal may be under way
                raise

    def _reload_bad(self, rng: random.Random) -> None:
        """Reload a file that is no model: it must fail, and nothing may change."""
        generation = self.daemon.status()["generation"]
        try:
            self.daemon.ask("reload", model=str(self.daemon.config))
            self.tally.violate("a reload of a file that is no model worked")
        except CtlError:
            if self.daemon.status()["generation"] < generation:
                self.tally.violate("a failed reload took the generation back")

    def _drain(self, rng: random.Random) -> None:
        self.daemon.ask("drain", timeout_ms=rng.choice((0, 100, 1000)))
        time.sleep(rng.random())
        self.daemon.ask("undrain")

    def _hang_up_signal(self, rng: random.Random) -> None:
        self.daemon.signal(signal.SIGHUP)

    def _cancel_somebody(self, rng: random.Random) -> None:
        rows = self.daemon.ask("sessions")["sessions"]
        if rows:
            row = rng.choice(rows)
            self.daemon.ask("cancel", request_id=row["request_id"], conn=row["conn"])


def halves(points: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """Return the medians of a figure over the first half of the points, without the first one (caches are still empty
    there), and over the second half.
    """
    half = len(points) // 2
    return [median([p[name] for p in points[1:half]]), median([p[name] for p in points[half:]])]


def run(minutes: float, seed: int, turns: Turns, say: Say) -> dict[str, Any]:
    with running() as daemon:
        soak = Soak(daemon, seed, say)
        soak.run(minutes, turns)
        errors = daemon.log_errors()
        metrics = daemon.metrics()
        generation = daemon.status()["generation"]
    tally = soak.tally
    return {
        "minutes": minutes,
        "segment_s": turns.segment_s,
        "n_visits": tally.total("kind/"),
        "visits": tally.under("kind/"),
        "n_accepted": sum(metrics["requests_accepted_total"].values()),
        "n_ended": sum(metrics["requests_total"].values()),
        "finals": tally.under("final/"),
        "errors": tally.under("error/"),
        "operator": tally.under("operator/"),
        "n_slow_dropped": tally.counts["visit/slow dropped"],
        "generation": generation,
        "points": soak.points,
        "rss_mb": halves(soak.points, "rss_mb"),
        "own_mb": halves(soak.points, "own_mb"),
        "plan_violations": metrics["plan_violations_total"],
        "alloc_warnings": metrics["alloc_warnings_total"],
        "n_violations": tally.n_violations + len(errors),
        "violations": [*tally.violations, *errors][:20],
    }
