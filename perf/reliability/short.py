"""The short trials: drain under a storm, death and restart, status during long calls, a thousand requests and
connections, idleness.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from perf.gguf_file import ensure
from perf.reliability.daemon import START_S, Daemon, Failed, running
from perf.reliability.streams import prompt_of
from perf.reliability.tally import MAX_KEPT, Tally
from perf.stats import percentile
from uma_ctl.client import Client
from uma_ctl.errors import CannotConnect, CtlError

DEADLINE_MS = 2000.0
N_STORM = 12
N_KILLS = 5
N_STATUS = 200
LONG_MODEL = "0.5b-q8_0"  # on one thread, a call for a prompt of N_LONG words takes seconds
N_LONG = 80
N_THOUSAND = 1000
IDLE_S = 20.0

Say = Callable[[str], None]


def drains(n_drains: int, say: Say) -> dict[str, Any]:
    """Drain while clients keep coming; all accepted requests must end in time."""
    tally, took_ms = Tally(), []
    with running() as daemon:
        stop = threading.Event()
        threads = [
            threading.Thread(target=_storm, args=(daemon, seed, stop, tally), daemon=True) for seed in range(N_STORM)
        ]
        for thread in threads:
            thread.start()
        for n in range(n_drains):
            say(f"drain {n}")
            time.sleep(1.0)
            t0 = time.monotonic()
            daemon.ask("drain", timeout_ms=DEADLINE_MS)
            daemon.wait_until(lambda: daemon.status()["drain"]["remaining"] == 0)
            took_ms.append((time.monotonic() - t0) * 1000)
            daemon.ask("undrain")
        stop.set()
        for thread in threads:
            thread.join(60)
        daemon.wait_until(daemon.is_idle)
        metrics = daemon.metrics()
        errors = daemon.log_errors()
    n_accepted = sum(metrics["requests_accepted_total"].values())
    n_ended = sum(metrics["requests_total"].values())
    if n_accepted != n_ended:
        tally.violate(f"{n_accepted} requests were accepted, {n_ended} ended")
    return {
        "n_drains": n_drains,
        "deadline_ms": DEADLINE_MS,
        "took_ms": {"p50": percentile(took_ms, 50), "max": max(took_ms)},
        "late_ms_max": max(0.0, max(took_ms) - DEADLINE_MS),
        "n_accepted": n_accepted,
        "n_ended": n_ended,
        "finals": tally.under("final/"),
        "n_violations": tally.n_violations + len(errors),
        "violations": [*tally.violations, *errors],
    }


def _storm(daemon: Daemon, seed: int, stop: threading.Event, tally: Tally) -> None:
    rng = random.Random(seed)
    while not stop.is_set():
        try:
            with Client(daemon.path, 60) as client:
                n_tokens = rng.choice((4, 40, 1500))
                last: dict[str, Any] = {}
                for last in client.generate(  # noqa: B007
                    {
                        "id": "s",
                        "prompt": prompt_of(rng, rng.choice((0, 50, 400))),
                        "max_tokens": n_tokens,
                        "ignore_eos": True,
                    }
                ):
                    pass
                tally.add(f"final/{last.get('reason') or last.get('name')}")
                if last["event"] == "error":
                    stop.wait(0.1)
        except CtlError as error:
            tally.violate(f"a request got no final event: {error}")


def restarts(say: Say) -> dict[str, Any]:
    """Kill the daemon with -9 again and again: clients see the end, the stale socket is replaced, the next daemon is
    ready soon.
    """
    tally, start_ms = Tally(), []
    with running() as daemon:
        for n in range(N_KILLS):
            say(f"kill {n}")
            with Client(daemon.path, 30) as client:
                events = client.generate({"id": "k", "prompt": "The shell is", "max_tokens": 1500, "ignore_eos": True})
                next(events)
                daemon.signal(signal.SIGKILL)
                try:
                    for event in events:
                        if event["event"] != "token":
                            tally.violate(f"a killed daemon sent {event}")
                    tally.violate("the stream of a killed daemon ended normally")
                except CtlError:
                    tally.add("eof")
            daemon.stop()
            start_ms.append(daemon.start())
        errors = daemon.log_errors()
    return {
        "n_kills": N_KILLS,
        "n_eof": tally.counts["eof"],
        "start_ms": {"p50": percentile(start_ms, 50), "max": max(start_ms)},
        "n_violations": tally.n_violations + len(errors),
        "violations": [*tally.violations, *errors],
    }


def status_latency(say: Say) -> dict[str, Any]:
    """Ask for `status` while decode calls of seconds run: prompts read in one piece each, on one thread."""
    say("status during long calls")
    flags: tuple[str, ...] = (
        "--model",
        str(ensure(LONG_MODEL)),
        "--prefill-lanes",
        "0",
        "--n-batch",
        "8192",
        "--n-ubatch",
        "8192",
        "--n-ctx",
        "8192",
        "--tick-budget-ms",
        "10000",
    )
    flags += (
        "--prefill-burst",
        "8192",
        "--start-target-tokens",
        "8192",
        "--no-prefix-cache",
        "--max-prompt-bytes",
        "200000",
    )
    times_ms: list[float] = []
    with running(4, *flags) as daemon:
        stop = threading.Event()
        threads = [threading.Thread(target=_read_long, args=(daemon, seed, stop), daemon=True) for seed in range(3)]
        for thread in threads:
            thread.start()
        daemon.wait_until(lambda: daemon.metrics()["batch_calls_total"] > 2)
        while len(times_ms) < N_STATUS:
            with Client(daemon.path, START_S) as client:
                t0 = time.monotonic()
                client.call("status")
                times_ms.append((time.monotonic() - t0) * 1000)
            time.sleep(0.02)
        longest_ms = daemon.metrics()["decode_call_ms"]["max"]
        stop.set()
        daemon.signal(signal.SIGINT)
        for thread in threads:
            thread.join(60)
    quantiles = {"p50": percentile(times_ms, 50), "p99": percentile(times_ms, 99), "max": max(times_ms)}
    return {
        "n": len(times_ms),
        "status_ms": quantiles,
        "longest_call_ms": longest_ms,
        "n_violations": 0,
        "violations": [],
    }


def _read_long(daemon: Daemon, seed: int, stop: threading.Event) -> None:
    rng = random.Random(seed)
    while not stop.is_set():
        try:
            with Client(daemon.path, START_S) as client:
                request = {"id": "l", "prompt": prompt_of(rng, N_LONG), "max_tokens": 2, "ignore_eos": True}
                list(client.generate(request))
        except CtlError:
            return  # the trial is over


def thousands(say: Say) -> dict[str, Any]:
    """A thousand requests, then a thousand connections: nothing grows with them."""
    say("a thousand requests and connections")
    with running() as daemon:
        violations = _requests(daemon, 100)
        before = daemon.rss_mb(), daemon.n_descriptors()
        violations += _requests(daemon, N_THOUSAND)
        middle = daemon.rss_mb()
        for _ in range(N_THOUSAND):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(daemon.path)
        daemon.ask("cache", action="clear")
        daemon.wait_until(lambda: daemon.status()["sessions"]["connections"] == 1)  # the connection that asks
        with contextlib.suppress(Failed):  # a connection is closed a moment after its client
            daemon.wait_until(lambda: daemon.n_descriptors() <= before[1])
        after = daemon.rss_mb(), daemon.n_descriptors()
        reserved = daemon.status()["kv"]["reserved"]
        violations += daemon.log_errors()
    return {
        "n": N_THOUSAND,
        "rss_mb": [round(before[0], 1), round(middle, 1), round(after[0], 1)],
        "descriptors": [before[1], after[1]],
        "kv_reserved": reserved,
        "n_violations": len(violations),
        "violations": violations[:MAX_KEPT],
    }


def _requests(daemon: Daemon, n: int) -> list[str]:
    """Send requests one after another; returns a text for each that was not answered."""
    violations = []
    for _ in range(n):
        with Client(daemon.path, 60) as client:
            *_, last = client.generate({"id": "t", "prompt": "The shell is", "max_tokens": 3, "ignore_eos": True})
        if last.get("reason") != "length":
            violations.append(f"a request was not answered: {last}")
    return violations


def idle(say: Say) -> dict[str, Any]:
    """An idle daemon uses no processor."""
    say(f"{IDLE_S:.0f} s of idleness")
    with running() as daemon:
        before = daemon.cpu_s()
        time.sleep(IDLE_S)
        share = (daemon.cpu_s() - before) / IDLE_S
    return {"seconds": IDLE_S, "cpu_percent": round(share * 100, 3), "n_violations": 0, "violations": []}


def second_daemon(say: Say) -> dict[str, Any]:
    """Two daemons on one socket: the second refuses to start, the first keeps running."""
    say("two daemons")
    violations = []
    with running() as first:
        second = Daemon(first.folder)
        with contextlib.suppress(Failed):
            second.start()
        status = second.stop()
        if status != 1:
            violations.append(f"the second daemon's exit status is {status}")
        try:
            violations += _requests(first, 1)
        except CannotConnect:
            violations.append("the first daemon was harmed")
    return {"exit_status": status, "n_violations": len(violations), "violations": violations}
