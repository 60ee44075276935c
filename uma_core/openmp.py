"""How OpenMP's runtime (libgomp) is configured when it is loaded: where compute threads run, how long they spin.

Compute threads spin at a barrier for up to 300,000 rounds, some 20 ms. A kernel that schedules groups of processes (a
session, a service) may keep two of them on one processor while another program has the next one to itself. Each
operation then takes as long as the spinning. docs/SYSTEM_DESIGN.md has the measurements.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from uma_core.machine import N_PROCESSORS, use_all_processors

USER_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# Where fewer threads than processors compute: some 0.7 ms. With 8 of 16 processors a step takes the same time as with
# 300,000 rounds; with 300 it takes a third longer.
SPIN_COUNT = "10000"


def variables(n_threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """What to set for `n_threads` compute threads (0: one for each processor). Empty if the user has set any of them.

    With at least as many threads as processors, each thread is bound to one: no other place would be better. Fewer
    threads stay free to move to idle processors. Bound threads keep libgomp's spin count: with 10,000 a storm took 7 %
    longer.
    """
    if sys.platform != "linux" or any(name in environ for name in USER_VARIABLES):
        return {}
    return {"GOMP_SPINCOUNT": SPIN_COUNT} if 0 < n_threads < N_PROCESSORS else {"OMP_PROC_BIND": "true"}


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
