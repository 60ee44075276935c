"""What a comparison of the engines may do: told by whoever wants an engine to whoever opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from uma_core.engine.api import MemoryUse


@dataclass(frozen=True, slots=True)
class Trial:
    """All three are called on the loading thread."""

    # whether this much can be loaded without pushing anything out, into a device with so many free bytes (None: the
    # machine's memory)
    fits: Callable[[MemoryUse, int | None], bool] = lambda need, free: True
    goes_on: Callable[[], bool] = lambda: True  # False: the daemon stops
    tell: Callable[[str], None] = lambda doing: None  # for whoever waits
