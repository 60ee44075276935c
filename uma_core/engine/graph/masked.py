"""Attention by ggml's own operation: over all cells from the first to the last page of a batch, with a mask that shows
each row its own cells.

Each cell is read once for all rows, even if no row sees it. A prefix that sequences share is read once.
"""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.attention import Rows, Span
from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.cells import Cells
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.recurrence import Recurrence
from uma_core.engine.graph.shape import Shape
from uma_core.engine.graph.store import PAGE
from uma_core.engine.lib import ffi, lib

LEAST_BYTES = 64 << 20  # graphs have room for a mask of this size, so that few are rebuilt when a span grows


class Masked:
    """Owns nothing: masks are inputs of the graphs. See attention.Attention."""

    # As in llama.cpp's own graphs. On Hopper GPUs, a ggml CUDA kernel begins while the one before it still computes
    # (PDL). With Q's rotation between the stores and attention, attention read K and V that were not written yet.
    is_q_first = True

    def __init__(self, cells: Cells, shape: Shape) -> None:
        self.cells: tuple[Rows, ...] = (Rows(1, PAGE),)
        self.recurrence: Recurrence | None = None
        self._cells = cells
        self._shape = shape
        self._found = ffi.new("int64_t[2]")

    def span(self, rows: Any, pages: Pages) -> Span:
        lib.uma_mask_span(rows, pages.table_pointer, pages.table.shape[1], self._cells.n_cells, self._found)
        return Span(self._found[0], self._found[1])

    def room(self, span: Span, n: int) -> int:
        return min(self.largest(), max(LEAST_BYTES // (2 * n), 1 << (span.n - 1).bit_length()))

    def largest(self) -> int:
        return self._cells.n_cells

    def masks(self, b: Builder) -> tuple[Any, Any]:
        windows = {layer.window > 0 for layer in self._shape.layers}
        full, window = (
            b.input(lib.GGML_TYPE_F16, b.n_span, b.n) if kind in windows else None for kind in (False, True)
        )
        return full, window

    def store(self, b: Builder, x: Any, layer: int, part: int) -> Any:
        # rows as a view: ggml's CUDA backend fuses them with rope
        rows = lib.ggml_view_2d(b.context, x, x.ne[0] * x.ne[1], b.n, x.nb[2], 0)
        return lib.ggml_set_rows(b.context, self._cells.tensor(layer, part), rows, b.cells[0])

    def attend(self, b: Builder, q: Any, stored: tuple[Any, Any], layer: int, sinks: Any) -> Any:
        s, own, context = b.shape, b.shape.layers[layer], b.context
        q = lib.ggml_permute(context, q, 0, 2, 1, 3)  # (dim, n, n_head)
        k, v = (
            self._heads(b, tensor, own.n_head_kv, dim)
            for tensor, dim in zip(stored, (own.dim_k, own.dim_v), strict=True)
        )
        out = lib.ggml_flash_attn_ext(context, q, k, v, b.masks[own.window > 0], s.scale, 0.0, s.softcap)
        lib.ggml_prec_set_acc(out, lib.GGML_PREC_F32)
        if sinks is not None:
            lib.ggml_flash_attn_ext_add_sinks(out, sinks)
        return lib.ggml_reshape_2d(context, out, own.n_embd_out, b.n)

    def _heads(self, b: Builder, cells: Any, n_head: int, dim: int) -> Any:
        """(dim, cells of the span, n_head_kv): the longest span, until the graph is fitted to a batch's span
        (native/graph/masked.c).

        `dim` may be less than the cells hold of a head: then it is the beginning.
        """
        held = cells.ne[0] // n_head
        b.views.append(
            lib.ggml_view_3d(
                b.context, cells, dim, b.n_span, n_head, cells.nb[1], lib.ggml_row_size(cells.type, held), 0
            )
        )
        return b.views[-1]

    def bind(self, native: Any, b: Builder, masks: tuple[Any, Any]) -> Any:
        full, window = (ffi.cast("uint16_t *", mask) for mask in masks)
        values = {
            "full": full,
            "window": window,
            "n_window": self._shape.window,
            "n_cells": b.n_span,
            "n_pool": self._cells.n_cells,
        }
        native.mask = mask = ffi.new("uma_mask *", values)
        views = ffi.new("struct ggml_tensor *[]", b.views)
        mask.views, mask.n_views = views, len(b.views)
        mask.inputs = [tensor or ffi.NULL for tensor in b.masks]
        return mask, views

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
