"""Attention over pages by our own operation, planned per batch: exact positions, nothing padded. For the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

from uma_core.engine.graph.arena import Arena
from uma_core.engine.graph.attention import NO_SPAN, Rows, Span
from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.recurrence import Recurrence
from uma_core.engine.graph.shape import Layer, Shape
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError


class Paged:
    """Owns a plan for each kind of layer. See attention.Attention."""

    is_q_first = False  # a prompt's chunk that wants no logits ends with the last layer's K and V

    def __init__(self, arena: Arena, shape: Shape, n_rows: int, n_threads: int) -> None:
        """`n_rows` 0: for graphs that are laid out and never computed. Raises: INSUFFICIENT_MEMORY."""
        self._arena = arena
        rows = [Rows(part.n_head, arena.page_bytes // part.row_bytes) for part in arena.layout.parts]
        self.cells = tuple(dict.fromkeys(rows))
        self._cells_of = [self.cells.index(row) for row in rows]
        self._shape = shape
        self._plans: dict[Kind, Any] = {}
        self.recurrence = Recurrence(shape, n_rows) if shape.has_states else None
        if not n_rows:
            return
        for layer in shape.layers:
            kind = kind_of(layer)
            if layer.state or kind in self._plans:
                continue
            k, v = (arena.layout.parts[arena.layout.index(layer.kv, part)].row_bytes for part in range(2))
            sizes = {
                **kind._asdict(),
                "n_head_kv": layer.n_head_kv * layer.n_share,
                "n_share": layer.n_share,
                "n_threads": n_threads,
                "k_bytes": k,
                "v_bytes": v,
                "page_bytes": arena.page_bytes,
            }
            self._plans[kind] = lib.uma_paged_new(
                ffi.new("uma_paged_shape *", {**sizes, "scale": shape.scale, "softcap": shape.softcap}), n_rows
            )
            if not self._plans[kind]:
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
        x = x if lib.ggml_is_contiguous(x) else lib.ggml_cont(b.context, x)  # V beside Q and K in one product
        rows = lib.ggml_reshape_2d(b.context, x, x.ne[0], x.ne[1] * b.n)
        cells = b.cells[self._cells_of[self._arena.layout.index(layer, part)]]
        return lib.ggml_set_rows(b.context, self._arena.view(b.context, layer, part), rows, cells)

    def attend(self, b: Builder, q: Any, stored: tuple[Any, Any], layer: int, sinks: Any) -> Any:
        own = self._shape.layers[layer]
        sources = [q, *stored, *([sinks] if sinks is not None else [])]
        args, kernel = ffi.new("struct ggml_tensor *[]", sources), ffi.addressof(lib, "uma_paged_attention")
        plan = self._plans.get(kind_of(own), ffi.NULL)
        return lib.ggml_custom_4d(
            b.context,
            lib.GGML_TYPE_F32,
            own.n_embd_out,
            b.n,
            1,
            1,
            args,
            len(sources),
            kernel,
            lib.GGML_N_TASKS_MAX,
            plan,
        )

    def bind(self, native: Any, b: Builder, masks: tuple[Any, Any]) -> Any:
        plans = ffi.new("uma_paged *[]", list(self._plans.values()))
        native.plans, native.n_plans = plans, len(plans)
        return plans

    def close(self) -> None:
        for plan in self._plans.values():
            lib.uma_paged_free(plan)
        self._plans.clear()


class Kind(NamedTuple):
    """What layers that share a plan have in common."""

    n_head: int
    n_head_kv: int
    dim_k: int
    dim_v: int
    window: int


def kind_of(layer: Layer) -> Kind:
    return Kind(layer.n_head, layer.n_head_kv, layer.dim_k, layer.dim_v, layer.window)
