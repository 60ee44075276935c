"""Pages of empty KV go back to the system, and come again. Host memory on Linux only: elsewhere the system has no such
request for it.

Rules: ctypes for the operating system alone. Cells that nobody marked as used may read as zeros at any time.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np

from uma_core.engine.lib import ffi, lib

MADV_DONTNEED = 4  # Linux: anonymous pages are dropped at once, and read as zeros again


def release_stream(gate: Any, stream: int) -> int:
    """Give back the pages that only this stream's cells use; returns how many bytes that could be."""
    if not sys.platform.startswith("linux"):
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    n_bytes = 0
    for tensor in [*gate.k[0 : gate.n_layer], *gate.v[0 : gate.n_layer]]:
        if not lib.ggml_backend_buffer_is_host(tensor.buffer):
            continue
        start = int(ffi.cast("uintptr_t", tensor.data)) + stream * tensor.nb[2]
        begin, end = whole_pages(start, start + tensor.nb[2])
        if begin < end and madvise(begin, end - begin, MADV_DONTNEED) == 0:
            n_bytes += end - begin
    return n_bytes


def touch_stream(gate: Any, stream: int, n: int) -> None:
    """Make the system give real memory to a stream's first n cells: untouched pages all read from one that is always
    in the cache.
    """
    for tensor in [*gate.k[0 : gate.n_layer], *gate.v[0 : gate.n_layer]]:
        if n and lib.ggml_backend_buffer_is_host(tensor.buffer):
            start = ffi.cast("char *", tensor.data) + stream * tensor.nb[2]
            np.frombuffer(ffi.buffer(start, n * tensor.nb[1]), np.uint8)[:: mmap.PAGESIZE] = 0


def whole_pages(begin: int, end: int) -> tuple[int, int]:
    """The pages that lie wholly between two addresses."""
    return -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
