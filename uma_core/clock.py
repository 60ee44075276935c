"""Time, as an object that callers pass in: real in the daemon, set by hand in tests."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic nanoseconds; the origin is arbitrary."""

    def now_ns(self) -> int: ...


class MonotonicClock:
    """The system's monotonic clock, the one that the native code reads too."""

    __slots__ = ()

    now_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """Stands still until `advance` is called."""

    __slots__ = ("_now_ns",)

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, ns: int) -> int:
        """Move forward by `ns` and return the new time."""
        if ns < 0:
            raise ValueError("a monotonic clock cannot go back")
        self._now_ns += ns
        return self._now_ns
