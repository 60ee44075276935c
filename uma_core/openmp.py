"""What OpenMP's runtime (libgomp) is told when it is loaded: where compute threads run, how long they wait awake.

Threads that wait for each other spin for up to 300,000 rounds, some 20 ms. A system that shares by groups of processes
(a session, a service) may leave two of them on one processor and another program alone on the next: each operation then
takes as long as that. docs/SYSTEM_DESIGN.md has the measurements.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from uma_core.machine import N_PROCESSORS, use_all_processors

GIVEN = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# Where fewer threads than processors compute: some 0.7 ms. With 8 of 16 processors a step takes the same time as with
# 300,000 rounds; with 300 it takes a third longer.
ROUNDS = "10000"


def variables(n_threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Of `n_threads` compute threads; 0: as many as there are processors. None where the user has set some.

    As many threads as processors get one each: no other place would be better for any. Fewer stay free to go where
    nobody computes. Bound threads keep libgomp's own rounds: with 10,000 a storm took 7 % longer.
    """
    if sys.platform != "linux" or any(name in environ for name in GIVEN):
        return {}
    return {"GOMP_SPINCOUNT": ROUNDS} if 0 < n_threads < N_PROCESSORS else {"OMP_PROC_BIND": "true"}


@contextmanager
def told(n_threads: int) -> Iterator[None]:
    """Load libgomp within. What it was told is no business of the processes that this one begins, and the thread that
    loads it is bound by that to one processor: it may use all again.
    """
    made = variables(n_threads, os.environ)
    os.environ.update(made)
    try:
        yield
    finally:
        for name in made:
            del os.environ[name]
        use_all_processors()
