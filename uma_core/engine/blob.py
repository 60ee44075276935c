"""Bytes for snapshots. A large blob is a mapping of its own, not numpy's memory.

numpy asks the system for large pages for arrays of 4 MiB and more. If such an array lies in a hole of the C library's
heap, those addresses keep the request after the array is gone. Later the kernel backs them with pages of 2 MiB for a
few bytes in use: RSS grows without an allocation. When a mapping is dropped, its request is gone too.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from uma_core.engine.lib import lib
from uma_core.errors import ErrorCode, UmaError

MAP_FROM_BYTES = 1 << 20  # smaller blobs are not worth a mapping, and numpy requests no large pages for them


def new_blob(n_bytes: int) -> memoryview:
    """Allocate `n_bytes`, freed with the last view. Large blobs read as zeros without being touched; small ones are not
    initialized.

    Raises: INSUFFICIENT_MEMORY.
    """
    if not lib.uma_guard_reserve():
        raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for snapshots: the rest is reserved for computing")
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    if n_bytes >= MAP_FROM_BYTES and flags:
        with contextlib.suppress(OSError):  # the system limits the number of mappings: beyond it, the heap is used
            return memoryview(mmap.mmap(-1, n_bytes, flags=flags))
    try:
        return np.empty(n_bytes, np.uint8).data
    except MemoryError as error:
        raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, f"cannot allocate {n_bytes >> 10} KiB for a snapshot") from error
