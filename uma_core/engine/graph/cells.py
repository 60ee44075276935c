"""KV on a device: K and V of each layer as one tensor of cells, because ggml's own attention reads such tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from uma_core.engine.graph.device import Device, tensor_context
from uma_core.engine.graph.shape import Shape
from uma_core.engine.graph.store import PAGE, Layout
from uma_core.engine.lib import ffi, lib

STEP = 256  # a span's length is a multiple of this (native/graph/masked.c), and all its cells must exist


class Cells:
    """Owns the tensors; cell 64 p + i is position i of page p. See store.Store for the contract."""

    def __init__(self, shape: Shape, kv_type: str, n_pages: int, device: Device, is_dry: bool) -> None:
        """Raises: Unsupported, INSUFFICIENT_MEMORY."""
        self.layout = Layout(shape, kv_type)
        self.n_cells = -(-n_pages * PAGE // STEP) * STEP
        self.n_bytes = self.n_cells * self.layout.position_bytes
        parts = self.layout.parts
        self._context = tensor_context(len(parts))
        self._tensors = [
            lib.ggml_new_tensor_2d(self._context, self.layout.kind, part.n_head * part.dim, self.n_cells)
            for part in parts
        ]
        self._buffer = None
        try:
            self._buffer = device.place(self._context, is_dry)
        except BaseException:
            self.close()
            raise
        if not is_dry:
            lib.ggml_backend_buffer_clear(self._buffer, 0)  # masked cells are read anyway, so they must hold numbers

    def tensor(self, layer: int, part: int) -> Any:
        """(dim * KV heads, cells): K (part 0) or V (part 1) that `layer` writes."""
        return self._tensors[self.layout.index(layer, part)]

    def _stretches(
        self, page: int, begin: int, end: int, cells: list[np.ndarray]
    ) -> Iterator[tuple[Any, np.ndarray, int, int]]:
        """Yield each tensor with its part of `cells`, and the place of the positions' bytes in it: offset, length."""
        arrays = (array for run in cells for array in run)
        for tensor, part, array in zip(self._tensors, self.layout.parts, arrays, strict=True):
            yield tensor, array, (page * PAGE + begin) * part.position_bytes, (end - begin) * part.position_bytes

    def taken(self, page: int) -> None:
        """Do nothing: all cells have memory from the start."""

    def copy(self, src: int, dst: int, begin: int, end: int) -> None:
        """Copy on the device, not through host memory."""
        context = tensor_context(2)
        for tensor in self._tensors:
            lib.ggml_reset(context)
            row = tensor.nb[1]
            views = [
                lib.ggml_view_2d(context, tensor, tensor.ne[0], end - begin, row, (page * PAGE + begin) * row)
                for page in (src, dst)
            ]
            for view in views:
                lib.ggml_backend_view_init(view)
            lib.ggml_backend_tensor_copy(*views)
        lib.ggml_free(context)

    def read(self, page: int, begin: int, end: int, cells: list[np.ndarray]) -> None:
        for tensor, array, offset, size in self._stretches(page, begin, end, cells):
            lib.ggml_backend_tensor_get(tensor, ffi.from_buffer("char[]", array, require_writable=True), offset, size)

    def write(self, page: int, begin: int, end: int, cells: list[np.ndarray]) -> None:
        for tensor, array, offset, size in self._stretches(page, begin, end, cells):
            lib.ggml_backend_tensor_set(tensor, ffi.from_buffer("char[]", array), offset, size)

    def touch(self, page: int) -> None:
        """Do nothing: all cells have memory from the start."""

    def release(self, page: int) -> int:
        return 0

    def close(self) -> None:
        if self._context:
            if self._buffer:
                lib.ggml_backend_buffer_free(self._buffer)
            lib.ggml_free(self._context)
            self._context = None
