"""Returns pages of empty KV and of mapped files to the system, and takes them back. Only for host memory on Linux:
other systems have no such request.

Rules: ctypes for the operating system alone. Cells that are not marked as used may read as zeros at any time.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np

from uma_core.engine.lib import ffi, lib

MADV_DONTNEED = 4  # Linux: anonymous pages are dropped at once, and read as zeros again


def release_stream(gate: Any, stream: int) -> int:
    """Give back the pages that only this stream's cells use. Returns the most bytes that these may be."""
    if not sys.platform.startswith("linux"):
        return 0
    n_bytes = 0
    for tensor in [*gate.k[0 : gate.n_layer], *gate.v[0 : gate.n_layer]]:
        if not lib.ggml_backend_buffer_is_host(tensor.buffer):
            continue
        start = int(ffi.cast("uintptr_t", tensor.data)) + stream * tensor.nb[2]
        begin, end = whole_pages(start, start + tensor.nb[2])
        if begin < end and _drop(begin, end):
            n_bytes += end - begin
    return n_bytes


def _drop(begin: int, end: int) -> bool:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(madvise(begin, end - begin, MADV_DONTNEED) == 0)


Mappings = frozenset[tuple[int, int]]  # of files, from address to address


def read_only_mappings() -> Mappings:
    """Mappings that no write can change, such as llama.cpp's of weights. Linux, proc(5); none elsewhere."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    found = (line.split(None, 2)[:2] for line in lines)
    return frozenset(
        (int(begin, 16), int(end, 16))
        for begin, _, end in (span.partition("-") for span, rights in found if rights == "r--s")
    )


def release_mappings(mappings: Mappings) -> None:
    """Give back mapped pages. llama.cpp reads whole files at load; pages in use return from the system's cache."""
    for begin, end in mappings:
        _drop(begin, end)


def touch_stream(gate: Any, stream: int, n: int) -> None:
    """Make the system give real memory to a stream's first n cells. Untouched pages would all read from a single page,
    which is always in the cache.
    """
    for tensor in [*gate.k[0 : gate.n_layer], *gate.v[0 : gate.n_layer]]:
        if n and lib.ggml_backend_buffer_is_host(tensor.buffer):
            start = ffi.cast("char *", tensor.data) + stream * tensor.nb[2]
            np.frombuffer(ffi.buffer(start, n * tensor.nb[1]), np.uint8)[:: mmap.PAGESIZE] = 0


def whole_pages(begin: int, end: int) -> tuple[int, int]:
    """The pages that lie wholly between two addresses."""
    return -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
