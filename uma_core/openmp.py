"""Configures OpenMP's runtime (libgomp) when it is loaded: where compute threads run, and how long they spin.

Compute threads spin at a barrier for up to 300,000 rounds, some 20 ms. A kernel that schedules groups of processes (a
session, a service) may keep two of the threads on one processor while another program has the next processor to itself.
Two processes that both compute may each wait for threads that the other keeps from running. In both cases each
operation takes as long as the spinning. docs/SYSTEM_DESIGN.md has the measurements.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from uma_core.machine import N_PROCESSORS, n_compute_threads, use_all_processors

USER_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# About 2 ms. Two processes with 16 threads each on 16 processors take 14 ms per step with 30,000 rounds, and finish no
# step in 30 s with 300,000. A process alone, or under load, takes the same time per step with 3,000 to 300,000 rounds,
# and a third longer with 300.
SPIN_COUNT = "30000"


def variables(n_threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set for `n_threads` compute threads (0: as many as the machine allows). Empty if the user
    has set any.

    With at least as many threads as processors, each thread is bound to one: no other place would be better. Fewer
    threads stay free to move to idle processors.
    """
    if sys.platform != "linux" or any(name in environ for name in USER_VARIABLES):
        return {}
    bound = {"OMP_PROC_BIND": "true"} if (n_threads or n_compute_threads()) >= N_PROCESSORS else {}
    return bound | {"GOMP_SPINCOUNT": SPIN_COUNT}


@contextmanager
def configured(n_threads: int) -> Iterator[None]:
    """Load libgomp inside this context. Afterwards the variables are gone, so that child processes do not inherit them,
    and the calling thread, which libgomp binds to one processor, may use all of them again.
    """
    added = variables(n_threads, os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
        use_all_processors()
