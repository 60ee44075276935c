"""Limits of a comparison of the engines, from the code that wants an engine to the code that opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from uma_core.engine.api import MemoryUse


@dataclass(frozen=True, slots=True)
class Trial:
    """All three are called on the loading thread."""

    # whether this much memory can be loaded without evicting anything, into a device with this many free bytes (None:
    # into the machine's memory)
    fits: Callable[[MemoryUse, int | None], bool] = lambda need, free: True
    should_continue: Callable[[], bool] = lambda: True  # False: the daemon stops
    tell: Callable[[str], None] = lambda doing: None  # reports progress to clients that wait
