"""Ray starts its workers at niceness 15, and the daemons inherit it: every other process on the machine runs first.

With one busy process on each of two cores, a chat then got a token every 850 ms, with a longest pause of 2.7 s. At
niceness 0 it got one every 2 to 5 ms, with a longest pause of 20 ms (embedded model, AMD EPYC with AVX-512).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

NICENESS = "RAY_worker_niceness"  # read when Ray is started, for all workers of the machine


def use(environ: MutableMapping[str, str]) -> None:
    """Let a Ray that this process starts run its workers at niceness 0, unless the user has set another one."""
    environ.setdefault(NICENESS, "0")


def current() -> int:
    """Return the niceness of the calling process."""
    return os.getpriority(os.PRIO_PROCESS, 0)
