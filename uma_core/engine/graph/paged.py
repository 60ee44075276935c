"""Attention over pages by our own operation, planned per batch: exact positions, nothing padded. For the CPU."""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.arena import Arena
from uma_core.engine.graph.attention import NO_SPAN, Span
from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.shape import Shape
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError


class Paged:
    """Owns the plan of layers that see everything, and that of layers with a window where the model has some. See attention.Attention."""

    def __init__(self, arena: Arena, shape: Shape, n_rows: int, n_threads: int) -> None:
        """`n_rows` 0: for graphs that are laid out and never computed. Raises: INSUFFICIENT_MEMORY."""
        self.n_ids, self.page_rows = shape.n_head_kv, arena.page_rows
        self._arena = arena
        self.full = self.window = ffi.NULL
        if not n_rows:
            return
        sizes = {"n_head": shape.n_head, "n_head_kv": shape.n_head_kv, "dim": shape.dim, "n_threads": n_threads}
        sizes |= {"cell_bytes": arena.cell_bytes, "page_bytes": arena.page_bytes}
        native = ffi.new("uma_paged_shape *", {**sizes, "scale": shape.scale, "softcap": shape.softcap})
        self.full = lib.uma_paged_new(native, n_rows)
        if shape.window:
            native.window = shape.window
            self.window = lib.uma_paged_new(native, n_rows)
        if not self.full or (shape.window and not self.window):
            self.close()
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for plans of attention")

    def span(self, rows: Any, pages: Pages) -> Span:
        return NO_SPAN

    def room(self, span: Span, n: int) -> int:
        return 0

    def largest(self) -> int:
        return 0

    def masks(self, b: Builder) -> tuple[None, None]:
        return None, None

    def store(self, b: Builder, x: Any, layer: int, part: int) -> Any:
        rows = lib.ggml_reshape_2d(b.context, x, b.shape.dim, b.shape.n_head_kv * b.n)
        return lib.ggml_set_rows(b.context, self._arena.view(b.context, layer, part), rows, b.cell)

    def attend(self, b: Builder, q: Any, stored: tuple[Any, Any], layer: int) -> Any:
        sources = ffi.new("struct ggml_tensor *[]", [q, *stored])
        kernel, plan = ffi.addressof(lib, "uma_paged_attention"), self.window if b.shape.is_windowed(layer) else self.full
        return lib.ggml_custom_4d(b.context, lib.GGML_TYPE_F32, b.shape.n_embd_q, b.n, 1, 1, sources, 3, kernel, lib.GGML_N_TASKS_MAX, plan)

    def bind(self, native: Any, b: Builder, masks: tuple[Any, Any]) -> None:
        native.paged, native.window = self.full, self.window

    def close(self) -> None:
        for plan in (self.full, self.window):
            lib.uma_paged_free(plan)
        self.full = self.window = ffi.NULL
