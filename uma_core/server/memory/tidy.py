"""Returns freed memory to the system once the daemon has been idle for a while; otherwise the C library keeps it.

Rules: on the I/O thread, at most once per period of work; never while streams run.
"""

from __future__ import annotations

from collections.abc import Callable

import uma_core.metrics.catalog as m
from uma_core.server.memory import budget

IDLE_BEATS = 3  # housekeeping turns without work


class Tidy:
    """The housekeeping calls `beat` at every turn."""

    def __init__(self, registry: m.Registry, generation: Callable[[], int]) -> None:
        self._ticks = registry.counter(m.TICKS)
        # a reload leaves memory behind too: what its disk tier still has to write is freed later
        self._generation = generation
        self._seen = (0, 0)
        self._n_idle = IDLE_BEATS

    def beat(self) -> bool:
        """Return whether memory was given back."""
        now = self._ticks.value, self._generation()
        if now != self._seen:
            self._seen, self._n_idle = now, 0
            return False
        self._n_idle += 1
        if self._n_idle != IDLE_BEATS:
            return False
        budget.give_back()
        return True
