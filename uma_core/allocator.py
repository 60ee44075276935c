"""Settings of the C library's allocator (glibc), for processes that use large buffers now and then."""

from __future__ import annotations

import ctypes
import logging
import sys

log = logging.getLogger(__name__)

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # malloc.h
MMAP_FROM_BYTES = 1 << 20
N_ARENAS = 2


def tame_allocator() -> None:
    """Keep large buffers (a model's, a request's) out of the heap, so that all of their memory returns to the system.

    By default, once glibc has freed a large buffer it puts the next one into its heap, where allocations above it keep
    it from being returned, and it gives every thread its own heap.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_FROM_BYTES)
        libc.mallopt(M_ARENA_MAX, N_ARENAS)
    except AttributeError:  # another C library
        log.debug("no mallopt here")
