"""KV on the CPU: one arena of pages, laid out for paged attention.

A page's bytes lie together: (layer, K and V, KV head, position, row), so that copies and returns to the system take
whole pages. A page's length is a multiple of every row length, so that rows have one numbering across all pages.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
from typing import Any

import numpy as np

from uma_core.engine.graph.device import tensor_context
from uma_core.engine.graph.shape import Shape
from uma_core.engine.graph.store import PAGE, Layout
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError


class Arena:
    """Owns the memory. See store.Store for the contract."""

    def __init__(self, shape: Shape, kv_type: str, n_pages: int) -> None:
        """Raises: Unsupported, INSUFFICIENT_MEMORY."""
        self.layout = layout = Layout(shape, kv_type)
        unit = math.lcm(*(part.row_bytes for part in layout.parts))
        self.page_bytes = -(-layout.position_bytes * PAGE // unit) * unit
        self.n_bytes = n_pages * self.page_bytes
        self._firsts = [0, *itertools.accumulate(part.position_bytes * PAGE for part in layout.parts)]
        self._memory = _memory(self.n_bytes + mmap.PAGESIZE)  # the kernel's vectors may look past the last row
        self._base = ffi.from_buffer(self._memory)
        self._context = tensor_context(2)
        self._buffer = lib.ggml_backend_cpu_buffer_from_ptr(self._base, len(self._memory))
        if not self._buffer:
            lib.ggml_free(self._context)
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for the KV's buffer")
        n = self.n_bytes // lib.ggml_type_size(layout.kind) * lib.ggml_blck_size(layout.kind)
        self._all = lib.ggml_new_tensor_1d(self._context, layout.kind, n)
        lib.ggml_backend_tensor_alloc(self._buffer, self._all, self._base)
        self._data = np.frombuffer(self._memory, np.uint8, self.n_bytes).reshape(n_pages, -1)
        self._runs: list[np.ndarray] = []  # (page, K and V of layers, KV head, position, bytes of a row)
        at = 0
        for n_parts, part in layout.runs:
            size = n_parts * part.position_bytes * PAGE
            self._runs.append(
                self._data[:, at : at + size].reshape(n_pages, n_parts, part.n_head, PAGE, part.row_bytes)
            )
            at += size
        self._is_dirty = np.zeros(n_pages, bool)

    def view(self, context: Any, layer: int, part: int) -> Any:
        """(dim, rows) from the K (part 0) or V (part 1) of head 0, page 0 on."""
        index = self.layout.index(layer, part)
        first, (_, dim, row_bytes) = self._firsts[index], self.layout.parts[index]
        return lib.ggml_view_2d(context, self._all, dim, (self.n_bytes - first) // row_bytes, row_bytes, first)

    def taken(self, page: int) -> None:
        self._is_dirty[page] = True

    def copy(self, src: int, dst: int, begin: int, end: int) -> None:
        for run in self._runs:
            run[dst][:, :, begin:end] = run[src][:, :, begin:end]

    def read(self, page: int, begin: int, end: int, cells: list[np.ndarray]) -> None:
        for run, out in zip(self._runs, cells, strict=True):
            out[:] = run[page][:, :, begin:end].transpose(0, 2, 1, 3)

    def write(self, page: int, begin: int, end: int, cells: list[np.ndarray]) -> None:
        for run, values in zip(self._runs, cells, strict=True):
            run[page][:, :, begin:end] = values.transpose(0, 2, 1, 3)

    def touch(self, page: int) -> None:
        self._data[page][:: mmap.PAGESIZE] = 0

    def release(self, page: int) -> int:
        begin = -(-page * self.page_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (page + 1) * self.page_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if not hasattr(mmap, "MADV_DONTNEED") or not self._is_dirty[page] or begin >= end:
            return 0
        self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
        self._is_dirty[page] = False
        return end - begin

    def close(self) -> None:
        if self._buffer:
            lib.ggml_backend_buffer_free(self._buffer)
            lib.ggml_free(self._context)
            self._buffer = None
            ffi.release(self._base)
            # views of exports that are still being written keep the memory until they are gone
            del self._data, self._runs, self._memory


def _memory(n_bytes: int) -> mmap.mmap:
    """Private memory, zero until it is touched. It uses the system's large pages if there are any, because a KV page is
    read in many places.

    Raises: INSUFFICIENT_MEMORY.
    """
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    try:
        memory = mmap.mmap(-1, n_bytes, flags=flags) if flags else mmap.mmap(-1, n_bytes)
    except (OSError, OverflowError) as error:
        raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, f"cannot allocate {n_bytes >> 20} MiB for KV: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
