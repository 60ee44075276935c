"""KV on a device: K and V of each layer as one tensor of cells, which is what ggml's own attention reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from uma_core.engine.graph.device import Device, tensor_context
from uma_core.engine.graph.shape import Shape
from uma_core.engine.graph.store import KV_TYPES, PAGE, row_bytes
from uma_core.engine.lib import ffi, lib

STEP = 256  # cells in which a span is counted (native/masked.c): all of it must exist


class Cells:
    """Owns the tensors; cell 64 p + i is position i of page p. See store.Store for the contract."""

    def __init__(self, shape: Shape, kv_type: str, n_pages: int, device: Device, is_dry: bool) -> None:
        """Raises: Unsupported, INSUFFICIENT_MEMORY."""
        head_bytes = row_bytes(shape, kv_type)
        self.n_cells = -(-n_pages * PAGE // STEP) * STEP
        self.cell_bytes = shape.n_head_kv * head_bytes  # K, or V, of a layer
        self.page_bytes = 2 * shape.n_layer * PAGE * self.cell_bytes
        self.n_bytes = self.n_cells * self.page_bytes // PAGE
        self.blob_shape = (shape.n_layer, shape.n_head_kv, head_bytes)
        self._context = tensor_context(2 * shape.n_layer)
        kind, width = getattr(lib, KV_TYPES[kv_type]), shape.n_head_kv * shape.dim
        self.tensors = [[lib.ggml_new_tensor_2d(self._context, kind, width, self.n_cells) for _ in "kv"] for _ in range(shape.n_layer)]
        self._buffer = None
        try:
            self._buffer = device.place(self._context, is_dry)
        except BaseException:
            self.close()
            raise
        if not is_dry:
            lib.ggml_backend_buffer_clear(self._buffer, 0)  # what a mask hides is read all the same: it must be numbers

    def _parts(self) -> Iterator[tuple[int, int, Any]]:
        for layer, pair in enumerate(self.tensors):
            for part, tensor in enumerate(pair):
                yield layer, part, tensor

    def _at(self, page: int, begin: int) -> int:
        return (page * PAGE + begin) * self.cell_bytes

    def taken(self, page: int) -> None:
        """Its memory is there already."""

    def copy(self, src: int, dst: int, begin: int, end: int) -> None:
        """On the device, without a way by host memory."""
        context = tensor_context(2)
        for _, _, tensor in self._parts():
            lib.ggml_reset(context)
            views = [lib.ggml_view_2d(context, tensor, tensor.ne[0], end - begin, tensor.nb[1], self._at(page, begin)) for page in (src, dst)]
            for view in views:
                lib.ggml_backend_view_init(view)
            lib.ggml_backend_tensor_copy(*views)
        lib.ggml_free(context)

    def read(self, page: int, begin: int, end: int, cells: np.ndarray) -> None:
        for layer, part, tensor in self._parts():
            data = ffi.from_buffer("char[]", cells[layer, part], require_writable=True)
            lib.ggml_backend_tensor_get(tensor, data, self._at(page, begin), (end - begin) * self.cell_bytes)

    def write(self, page: int, begin: int, end: int, cells: np.ndarray) -> None:
        for layer, part, tensor in self._parts():
            data = ffi.from_buffer("char[]", cells[layer, part])
            lib.ggml_backend_tensor_set(tensor, data, self._at(page, begin), (end - begin) * self.cell_bytes)

    def touch(self, page: int) -> None:
        """Its memory is there already."""

    def release(self, page: int) -> int:
        return 0

    def close(self) -> None:
        if self._context:
            if self._buffer:
                lib.ggml_backend_buffer_free(self._buffer)
            lib.ggml_free(self._context)
            self._context = None
