"""Reloads under continuous streams: none is lost or cut, no token is of the wrong model, memory is given back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from perf.judge import Judge
from perf.reliability.daemon import MOE, TINY, Daemon, running
from perf.reliability.streams import Load, Taken
from perf.reliability.tally import Tally
from perf.stats import percentile

N_STREAMS = 8
N_TOKENS = 96
SETTLE_S = 5.0  # an idle daemon gives memory back after some seconds
WARM_UP_S = 4.0
N_WARM_UP = 20

Say = Callable[[str], None]


def run(n_reloads: int, say: Say) -> dict[str, Any]:
    """Run the trial. Half of the reloads change live settings, half the model."""
    tally = Tally()
    with running(N_STREAMS) as daemon:
        young = _size_after_load(daemon, tally)
        early, _ = _reloads_under_load(daemon, N_WARM_UP, tally, say)  # the allocators' pools are filled by then
        before = _size_after_load(daemon, tally)
        taken, times_ms = _reloads_under_load(daemon, n_reloads, tally, say)
        after = _size_after_load(daemon, tally)
        generation, errors = daemon.status()["generation"], daemon.log_errors()
    facts = _judge([*early, *taken], tally, say)
    return {
        "n_reloads": n_reloads,
        "generation": generation,
        "reload_ms": {"p50": percentile(times_ms, 50), "max": max(times_ms)},
        "n_warm_up": N_WARM_UP,
        "rss_mb": [young[0], before[0], after[0]],
        "descriptors": [before[1], after[1]],
        "finals": dict(Counter(each.reason for each in [*early, *taken])),
        "n_violations": tally.n_violations + len(errors),
        "violations": [*tally.violations, *errors][:20],
        **facts,
    }


def _reloads_under_load(daemon: Daemon, n_reloads: int, tally: Tally, say: Say) -> tuple[list[Taken], list[float]]:
    """Return the streams that were recorded meanwhile, and the ms that each reload took.

    Ends with the model that it began with.
    """
    load = Load(daemon.path, N_STREAMS, N_TOKENS, tally)
    load.start()
    times_ms = [_reload(daemon, load, n, say) for n in range(n_reloads)]
    load.stop()
    daemon.ask("reload", model=str(TINY))
    return load.taken, times_ms


def _reload(daemon: Daemon, load: Load, n: int, say: Say) -> float:
    if n % 10 == 0:
        say(f"reload {n}, {len(load.taken)} streams")
    t0 = time.monotonic()
    load.epoch += 1
    if n % 2:
        daemon.configure(scheduler={"tick_budget_ms": 30 + n % 7}, log={"level": ("info", "warning")[n % 4 // 2]})
        daemon.ask("reload")
    else:
        daemon.ask("reload", model=str((MOE, TINY)[n // 2 % 2]))
    elapsed_ms = (time.monotonic() - t0) * 1000
    load.epoch += 1
    time.sleep(0.2)
    return elapsed_ms


def _size_after_load(daemon: Daemon, tally: Tally) -> tuple[float, int]:
    """Return memory and descriptors at rest, after the same work on the same model: an engine that has not computed yet
    is smaller.
    """
    load = Load(daemon.path, N_STREAMS, N_TOKENS, tally)
    load.start()
    time.sleep(WARM_UP_S)
    load.stop()
    daemon.wait_until(lambda: daemon.is_idle() and daemon.status()["sessions"]["connections"] == 1)
    daemon.ask("cache", action="clear")
    time.sleep(SETTLE_S)
    return round(daemon.rss_mb(), 1), daemon.n_descriptors()


def _judge(taken: list[Taken], tally: Tally, say: Say) -> dict[str, int]:
    """Check that every stream is whole, and entirely from one of the two models."""
    say(f"judging {len(taken)} streams")
    n_wrong = n_unjudged = 0
    with Judge(TINY) as tiny, Judge(MOE) as moe:
        for each in taken:
            if each.reason != "length" or each.n_counted != each.n_wanted:
                tally.violate(f"a stream was cut: {each.reason} after {each.n_counted} of {each.n_wanted} tokens")
            elif len(each.tokens) != each.n_wanted:
                n_unjudged += 1  # a character of several tokens, of which not all ids are known
            elif tiny.n_foreign(each.prompt, each.tokens) and moe.n_foreign(each.prompt, each.tokens):
                n_wrong += 1
    return {
        "n_streams": len(taken),
        "n_across": sum(each.has_reloaded for each in taken),
        "n_wrong_model": n_wrong,
        "n_unjudged": n_unjudged,
    }
