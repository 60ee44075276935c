"""The contract of KV page memory (arena.py on the CPU, cells.py on a device), and the layout of K and V in it."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np

from uma_core.engine.graph.shape import Shape, Unsupported
from uma_core.engine.lib import lib
from uma_core.engine.llama.params import KV_TYPES

PAGE = 64  # positions of a page


class Part(NamedTuple):
    """K, or V, of one layer."""

    n_head: int
    dim: int  # of a head
    row_bytes: int  # of one head and position

    @property
    def position_bytes(self) -> int:
        return self.n_head * self.row_bytes


class Layout:
    """K and V of the layers that write them, one after another. A snapshot of n positions has each as (n, heads, bytes
    of a row).
    """

    def __init__(self, shape: Shape, kv_type: str) -> None:
        """Raises: Unsupported."""
        self.kind = getattr(lib, KV_TYPES[kv_type])
        owners = [i for i, layer in enumerate(shape.layers) if layer.kv == i]  # recurrent layers have none
        self._index: dict[tuple[int, int], int] = {}
        self.parts: list[Part] = []
        for i in owners:
            layer, first = shape.layers[i], len(self.parts)
            dims = (layer.dim_k, layer.dim_v) if layer.has_v else (layer.dim_k,)
            self.parts += [self._part(layer.n_head_kv, dim, kv_type) for dim in dims]
            self._index |= {(i, 0): first, (i, 1): first + len(dims) - 1}
        # runs of parts alike: (how many, one of them)
        self.runs = [(len(list(run)), part) for part, run in groupby(self.parts)]
        self.position_bytes = sum(part.position_bytes for part in self.parts)

    def _part(self, n_head: int, dim: int, kv_type: str) -> Part:
        if dim % lib.ggml_blck_size(self.kind):
            raise Unsupported(f"KV type {kv_type} with heads of length {dim}")
        return Part(n_head, dim, int(lib.ggml_row_size(self.kind, dim)))

    def index(self, layer: int, part: int) -> int:
        """Index in `parts` of K (part 0) or V (part 1) that `layer` writes: V may be the beginning of K."""
        return self._index[layer, part]

    def views(self, blob: np.ndarray, n: int) -> list[np.ndarray]:
        """Views of a snapshot of n positions, one for each run: (parts, positions, KV heads, bytes of a row)."""
        out, at = [], 0
        for n_parts, part in self.runs:
            size = n_parts * n * part.position_bytes
            out.append(blob[at : at + size].reshape(n_parts, n, part.n_head, part.row_bytes))
            at += size
        return out


class Store(Protocol):
    """Memory of pages by number.

    `cells` are uint8 arrays as `Layout.views` makes them; positions begin..end lie in one page.
    """

    layout: Layout
    n_bytes: int

    def taken(self, page: int) -> None:
        """Note that the page is about to be written."""

    def copy(self, src: int, dst: int, begin: int, end: int) -> None: ...
    def read(self, page: int, begin: int, end: int, cells: list[np.ndarray]) -> None: ...
    def write(self, page: int, begin: int, end: int, cells: list[np.ndarray]) -> None: ...
    def touch(self, page: int) -> None:
        """Make the system give the page real memory, so that reading it takes as long as with content."""

    def release(self, page: int) -> int:
        """Give a free page's memory back to the system, if it has any. Returns bytes."""

    def close(self) -> None: ...
