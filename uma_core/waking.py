"""What wakes a reader that sleeps on an eventfd or a socket: eight bytes. native/llama/tick.c writes the same."""

from __future__ import annotations

import contextlib
import os
import sys

WAKING = (1).to_bytes(8, sys.byteorder)  # what eventfd(2) wants; a socket takes it as well


def wake(fd: int) -> None:
    """Write them to `fd`, which does not block; -1: nothing happens. A full one has enough to wake its reader."""
    if fd >= 0:
        with contextlib.suppress(BlockingIOError):
            os.write(fd, WAKING)
