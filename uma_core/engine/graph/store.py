"""What memory of KV pages does, wherever it is: arena.py on the CPU, cells.py on a device."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from uma_core.engine.graph.shape import Shape, Unsupported
from uma_core.engine.lib import lib

PAGE = 64  # positions
KV_TYPES = {"f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0"}  # what the attention kernels read


class Store(Protocol):
    """Memory of pages by number. `cells` arrays are (layer, K and V, position, KV head, bytes of a row), uint8; positions begin..end lie in one page."""

    page_bytes: int  # all layers
    n_bytes: int
    blob_shape: tuple[int, int, int]  # layers, KV heads, bytes of one head and position

    def taken(self, page: int) -> None:
        """It is about to be written."""

    def copy(self, src: int, dst: int, begin: int, end: int) -> None: ...
    def read(self, page: int, begin: int, end: int, cells: np.ndarray) -> None: ...
    def write(self, page: int, begin: int, end: int, cells: np.ndarray) -> None: ...
    def touch(self, page: int) -> None:
        """Make the system give real memory to it, so that reading it costs what it costs with content."""

    def release(self, page: int) -> int:
        """Give a free page's memory back to the system, where it has some; returns bytes."""

    def close(self) -> None: ...


def row_bytes(shape: Shape, kv_type: str) -> int:
    """K, or V, of one head and position. Raises: Unsupported."""
    kind = getattr(lib, KV_TYPES[kv_type])
    if shape.dim % lib.ggml_blck_size(kind):
        raise Unsupported(f"KV type {kv_type} with heads of length {shape.dim}")
    return int(lib.ggml_row_size(kind, shape.dim))
