"""Recurrent layers as operations of a graph (native/graph/recurrent.c): a short convolution, and a linear
recurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uma_core.engine.graph.shape import Shape, Unsupported
from uma_core.engine.graph.states import States, Stretch
from uma_core.engine.lib import ffi, lib

if TYPE_CHECKING:
    from uma_core.engine.graph.builder import Builder


class Recurrence:
    """The plan of a graph that computes or is paused: the states between which each run of rows goes.

    Part of the graph's Attention.
    """

    def __init__(self, shape: Shape, n_rows: int) -> None:
        """For batches of up to `n_rows` rows."""
        self._stretches = ffi.new("uma_stretch[]", max(1, n_rows))
        self._plan = ffi.new("uma_stretches *", {"at": self._stretches, "n": 0})
        self._layers: dict[int, Any] = {}
        at = 0
        for i, layer in enumerate(shape.layers):
            if layer.state:
                self._layers[i] = ffi.new("uma_recurrence *", {"plan": self._plan, "at": at, **layer.state._asdict()})
                at += layer.state.n_floats

    def fill(self, states: States, stretches: Sequence[Stretch]) -> None:
        """Set the plan before each computation. Must not be called while the graph is computed."""
        for at, stretch in zip(self._stretches, stretches, strict=False):
            at.first_row, at.n_rows = stretch.first_row, stretch.n_rows
            setattr(at, "from", states.address(stretch.source))
            at.to = states.address(stretch.target)
        self._plan.n = len(stretches)

    def convolution(self, b: Builder, x: Any, layer: int, name: str) -> Any:
        """(channels, n): each row mixed with the rows before it. The layer's state takes x's last rows."""
        state = b.layer(layer).state
        assert state is not None
        weights = b.weights.matrix(name, state.n_taps + 1, state.n_channels)
        if weights.type != lib.GGML_TYPE_F32:
            raise Unsupported(f"{name} of this type")
        return self._node(b, lib.uma_convolution_op(), [x, weights], (state.n_channels, b.n, 1), layer)

    def recur(self, b: Builder, sources: list[Any], layer: int) -> Any:
        """(dim_v, n_head, n). `sources`: q, k, v, decay, and with the delta rule beta (uma_recur)."""
        state = b.layer(layer).state
        assert state is not None
        return self._node(b, lib.uma_recur_op(), sources, (state.dim_v, state.n_head, b.n), layer)

    def _node(self, b: Builder, kernel: Any, sources: list[Any], ne: tuple[int, int, int], layer: int) -> Any:
        args = ffi.new("struct ggml_tensor *[]", sources)
        node = lib.ggml_custom_4d(
            b.context, lib.GGML_TYPE_F32, *ne, 1, args, len(sources), kernel, lib.GGML_N_TASKS_MAX, self._layers[layer]
        )
        lib.ggml_build_forward_expand(b.graph, node)  # it writes the state, even if the rows are not wanted
        return node
