"""Wakes a reader that sleeps on an eventfd or a socket, with eight bytes. native/llama/tick.c writes the same."""

from __future__ import annotations

import contextlib
import os
import sys

WAKING = (1).to_bytes(8, sys.byteorder)  # the format of eventfd(2); a socket accepts it as well


def wake(fd: int) -> None:
    """Write the bytes to `fd`, which is non-blocking; -1: do nothing. If it is full, its reader wakes anyway."""
    if fd >= 0:
        with contextlib.suppress(BlockingIOError):
            os.write(fd, WAKING)
