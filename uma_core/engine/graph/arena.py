"""KV on the CPU: one arena of pages, laid out for paged attention.

A page's bytes lie together: (layer, K and V, KV head, position, row), so that copies and returns to the system are of whole pages.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np

from uma_core.engine.graph.device import tensor_context
from uma_core.engine.graph.shape import Shape
from uma_core.engine.graph.store import KV_TYPES, PAGE, row_bytes
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError


class Arena:
    """Owns the memory. See store.Store for the contract."""

    def __init__(self, shape: Shape, kv_type: str, n_pages: int) -> None:
        """Raises: Unsupported, INSUFFICIENT_MEMORY."""
        self.cell_bytes = row_bytes(shape, kv_type)
        self.layer_rows = shape.n_head_kv * PAGE  # K of a layer, and as many of its V, in a page
        self.page_rows = 2 * shape.n_layer * self.layer_rows
        self.page_bytes = self.page_rows * self.cell_bytes
        self.n_bytes = n_pages * self.page_bytes
        self.blob_shape = (shape.n_layer, shape.n_head_kv, self.cell_bytes)
        self._memory = _memory(self.n_bytes + mmap.PAGESIZE)  # the kernel's vectors may look past the last row
        self._base = ffi.from_buffer(self._memory)
        self._context = tensor_context(2)
        self._buffer = lib.ggml_backend_cpu_buffer_from_ptr(self._base, len(self._memory))
        if not self._buffer:
            lib.ggml_free(self._context)
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for the KV's buffer")
        kind = getattr(lib, KV_TYPES[kv_type])
        self.rows = lib.ggml_new_tensor_2d(self._context, kind, shape.dim, n_pages * self.page_rows)  # one head and one position each
        lib.ggml_backend_tensor_alloc(self._buffer, self.rows, self._base)
        # (page, layer, K and V, KV head, position, bytes of a row)
        self.data = np.frombuffer(self._memory, np.uint8, self.n_bytes).reshape(n_pages, shape.n_layer, 2, shape.n_head_kv, PAGE, -1)
        self._is_dirty = np.zeros(n_pages, bool)

    def view(self, context: Any, layer: int, part: int) -> Any:
        """(dim, rows) from the K (part 0) or V (part 1) of head 0, page 0 on."""
        rows, first = self.rows, (2 * layer + part) * self.layer_rows
        return lib.ggml_view_2d(context, rows, rows.ne[0], rows.ne[1] - first, rows.nb[1], first * rows.nb[1])

    def taken(self, page: int) -> None:
        self._is_dirty[page] = True

    def copy(self, src: int, dst: int, begin: int, end: int) -> None:
        self.data[dst][:, :, :, begin:end] = self.data[src][:, :, :, begin:end]

    def read(self, page: int, begin: int, end: int, cells: np.ndarray) -> None:
        cells[:] = self.data[page][:, :, :, begin:end].transpose(0, 1, 3, 2, 4)

    def write(self, page: int, begin: int, end: int, cells: np.ndarray) -> None:
        self.data[page][:, :, :, begin:end] = cells.transpose(0, 1, 3, 2, 4)

    def touch(self, page: int) -> None:
        self.data[page].reshape(-1)[:: mmap.PAGESIZE] = 0

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
            del self.data, self._memory  # views of exports that are still being written keep it until they go


def _memory(n_bytes: int) -> mmap.mmap:
    """Private memory, zero until it is touched; in large pages of the system where it has them: a KV page is read in many places.

    Raises: INSUFFICIENT_MEMORY.
    """
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    try:
        memory = mmap.mmap(-1, n_bytes, flags=flags) if flags else mmap.mmap(-1, n_bytes)
    except (OSError, OverflowError) as error:
        raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, f"no {n_bytes >> 20} MiB for KV: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
