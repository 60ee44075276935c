"""What a comparison of the engines may do: told by whoever wants an engine to whoever opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from uma_core.engine.api import MemoryUse


@dataclass(frozen=True, slots=True)
class Trial:
    """All three are called on the loading thread."""

    fits: Callable[[MemoryUse], bool] = lambda need: True  # whether so much can be loaded without pushing anything out
    goes_on: Callable[[], bool] = lambda: True  # False: the daemon stops
    tell: Callable[[str], None] = lambda doing: None  # for whoever waits
