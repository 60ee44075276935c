"""Ray starts its workers at niceness 15, and the daemons with them: whatever else runs on a machine then goes first.

Beside one busy process on each of two cores a chat had a token every 850 ms, and 2.7 s between two of them; at niceness
0 it had one every 2 to 5 ms, and at most 20 ms between two (embedded model, AMD EPYC with AVX-512).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

NICENESS = "RAY_worker_niceness"  # read where Ray is started, for all workers of the machine


def use(environ: MutableMapping[str, str]) -> None:
    """Have a Ray that this process starts run its workers like any other process, unless something else is said."""
    environ.setdefault(NICENESS, "0")


def current() -> int:
    """That of this process."""
    return os.getpriority(os.PRIO_PROCESS, 0)
