"""Gives freed memory back to the system once the daemon has been idle for a moment: the C library keeps it otherwise.

Rules: on the I/O thread, at most once for each stretch of work; never while streams run.
"""

from __future__ import annotations

from collections.abc import Callable

import uma_core.metrics.catalog as m
from uma_core.server.memory import budget

IDLE_BEATS = 3  # housekeeping turns without work


class Tidy:
    """`beat` is called at every turn of the housekeeping."""

    def __init__(self, registry: m.Registry, generation: Callable[[], int]) -> None:
        self._ticks = registry.counter(m.TICKS)
        # a reload leaves memory behind too: what its disk tier still writes is freed after it
        self._generation = generation
        self._seen = (0, 0)
        self._n_idle = IDLE_BEATS

    def beat(self) -> bool:
        """True when memory was given back."""
        now = self._ticks.value, self._generation()
        if now != self._seen:
            self._seen, self._n_idle = now, 0
            return False
        self._n_idle += 1
        if self._n_idle != IDLE_BEATS:
            return False
        budget.give_back()
        return True
