"""How an executor reaches the threads around it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from uma_core.session.events import Event


class Ports(NamedTuple):
    events: deque[Event]  # for the I/O thread, in order
    announce: Callable[[], None]  # called when events may wait, just before the engine releases the GIL
    wake_fd: Callable[[], int]  # the same for decode calls: what the engine writes to once the GIL is free; -1: nothing
    wake: Callable[[], None]  # ends the compute thread's sleep; any thread


def unheard() -> Ports:
    """Return the ports of an executor whose events are read by the thread that ticks it."""
    return Ports(deque(), lambda: None, lambda: -1, lambda: None)
