"""Counts events from many threads, and keeps the texts of broken promises."""

from __future__ import annotations

import threading
from collections import Counter

MAX_KEPT = 20


class Tally:
    """Thread-safe."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.n_violations = 0
        self._lock = threading.Lock()

    def add(self, name: str, n: int = 1) -> None:
        with self._lock:
            self.counts[name] += n

    def violate(self, what: str) -> None:
        """Record a broken promise."""
        with self._lock:
            self.n_violations += 1
            if len(self.violations) < MAX_KEPT:
                self.violations.append(what)

    def total(self, prefix: str) -> int:
        with self._lock:
            return sum(n for name, n in self.counts.items() if name.startswith(prefix))

    def under(self, prefix: str) -> dict[str, int]:
        """Return the counts below a prefix, largest first."""
        with self._lock:
            found = [(name[len(prefix) :], n) for name, n in self.counts.most_common() if name.startswith(prefix)]
        return dict(found)
