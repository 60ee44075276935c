"""A model's graph of one batch shape, with its memory; and a store that keeps graphs for batches of the same shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from uma_core.engine.graph.adapters import Adapters
from uma_core.engine.graph.attention import Attention, BatchShape, Span
from uma_core.engine.graph.builder import Builder, Start
from uma_core.engine.graph.device import Device
from uma_core.engine.graph.families import Family
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.shape import Shape, Unsupported
from uma_core.engine.graph.weights import Weights
from uma_core.engine.graph.workspace import Workspace
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError

# A dense layer takes about 26 nodes and views, one of Gemma 4 with experts 60, one of DeepSeek with groups of experts
# 80; experts add as many as are used.
NODES_PER_LAYER = 96
NODES_BESIDE = 64
N_SMALL = 16  # batches of up to this many tokens keep their graph; of larger ones only the last is kept
N_KEPT = 128  # most small graphs: fifty are made at load, and as many more for each set of LoRA adapters in use


class Network:
    """The parts that all graphs of one loaded model share."""

    def __init__(
        self,
        shape: Shape,
        weights: Weights,
        family: Family,
        ropes: tuple[int, int],
        device: Device,
        adapters: Adapters,
        hidden_layers: tuple[int, ...] = (),
    ) -> None:
        """`ropes`: ggml's kind of rotary positions, and the most positions of a sequence. `hidden_layers`: graphs with
        a head also output these layers' inputs (see EngineOptions).
        """
        self.hidden_layers = hidden_layers
        self.device = device
        self.adapters = adapters
        self.shape = shape
        self.weights = weights
        self.family = family
        self._ropes = ropes

    def n_nodes(self, adapters: tuple[int, ...]) -> int:
        base = self.shape.n_layer * (NODES_PER_LAYER + 2 * self.shape.n_expert_used) + NODES_BESIDE
        return base + self.adapters.n_nodes(adapters)

    def build(self, context: Any, batch: BatchShape, attention: Attention) -> tuple[Builder, Any, Any]:
        """Append a batch of this shape to a new graph.

        Returns the builder with its inputs, and the logits and best tokens, or None.
        """
        graph = lib.ggml_new_graph_custom(context, self.n_nodes(batch.adapters), False)
        builder = Builder(context, graph, self.weights, self.shape, self.adapters)
        builder.start(Start(batch, attention, *self._ropes))
        logits = self.family.build(builder)
        for layer in self.hidden_layers:
            if layer in builder.hidden:
                lib.ggml_set_output(builder.hidden[layer])
            elif logits is not None:
                raise Unsupported(f"hidden states before layer {layer}")
        if logits is not None:
            lib.ggml_set_output(logits)
            lib.ggml_build_forward_expand(graph, logits)
        return builder, logits, self._best(context, graph, logits) if batch.has_head else None

    def _best(self, context: Any, graph: Any, logits: Any) -> Any:
        """Each row's best token, if the logits would have to be copied to find it."""
        if logits is None or not self.device.is_stock:
            return None
        best = lib.ggml_argmax(context, logits)
        if not lib.ggml_backend_dev_supports_op(self.device.handle, best):
            return None
        lib.ggml_set_output(best)
        lib.ggml_build_forward_expand(graph, best)
        return best

    def new_context(self, adapters: tuple[int, ...] = ()) -> Any:
        """A ggml_context that holds the nodes of a graph with these adapters, not their data.

        Raises: INSUFFICIENT_MEMORY.
        """
        n = self.n_nodes(adapters)
        size = n * lib.ggml_tensor_overhead() + lib.ggml_graph_overhead_custom(n, False)
        context = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": size, "no_alloc": True})[0])
        if not context:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for a graph")
        return context


class Compute(NamedTuple):
    """The parts with which a decoder or a slot computes."""

    backend: Any
    attention: Attention
    broken: list[str]  # shared by all that use the backend; if not empty, it must neither compute nor be freed


class Forward:
    """One graph, placed in a workspace. `native` is the struct that native/graph/forward.c works on.

    It can be computed any number of times, as long as its workspace does not move.
    """

    def __init__(
        self, network: Network, pages: Pages, compute: Compute, batch: BatchShape, workspace: Workspace
    ) -> None:
        self.batch = batch
        self.workspace = workspace
        self.context = network.new_context(batch.adapters)
        try:
            self._lay_out(network, pages, compute)
        except BaseException:
            self.close()
            raise

    def _lay_out(self, network: Network, pages: Pages, compute: Compute) -> None:
        batch, workspace = self.batch, self.workspace
        builder, logits, best = network.build(self.context, batch, compute.attention)
        workspace.place(builder.graph)
        self.native = n = ffi.new("uma_forward *")
        n.backend, n.graph = compute.backend, builder.graph
        n.pages, n.n_pages_seq = pages.table_pointer, pages.table.shape[1]
        n.n_vocab = network.shape.n_vocab
        n.n_hidden = 0 if batch.has_head else network.shape.n_embd
        inputs = builder.inputs()
        scales = builder.scales
        *addresses, at_logits, at_best = workspace.addresses([*inputs, *scales.values(), logits, best])
        self._hidden: list[Any] = [builder.hidden.get(layer) for layer in network.hidden_layers]
        addresses, at_scales = addresses[: len(inputs)], addresses[len(inputs) :]
        n.token, n.pos, n.out_id = (ffi.cast("int32_t *", at) for at in addresses[:3])
        kinds = compute.attention.cells
        cells = ffi.new(
            "uma_cells[]", [(ffi.cast("int64_t *", at), *kind) for at, kind in zip(addresses[3:-2], kinds, strict=True)]
        )
        n.cells, n.n_cells = cells, len(cells)
        n.logits, n.best_id = ffi.cast("float *", at_logits), ffi.cast("int32_t *", at_best)
        self.span = Span(0, batch.n_span)
        self._kept = [cells, compute.attention.bind(n, builder, (addresses[-2], addresses[-1]))]
        rows = [np.frombuffer(ffi.buffer(at, 4 * batch.n), np.float32) for at in at_scales]
        self._scales = [(which, factor, values) for (which, factor), values in zip(scales, rows, strict=True)]
        if workspace.is_staged:
            places = zip([*inputs, *scales.values()], [*addresses, *at_scales], strict=True)
            used = [(tensor, at) for tensor, at in places if tensor is not None and tensor.buffer]
            self._kept.append(ffi.new("uma_input[]", used))
            n.inputs, n.n_inputs = self._kept[-1], len(used)
            n.result, n.best = logits or ffi.NULL, best or ffi.NULL

    def fit(self, span: Span, are_rows_new: bool = False) -> None:
        """Fit the graph to a batch with this span, for which it must have room. Not while the graph is computed."""
        if span != self.span or (are_rows_new and self.native.mask):
            lib.uma_mask_fit(self.native, *span)
            self.span = span

    def scale(self, scales: Sequence[dict[int, float]], counts: Sequence[int]) -> None:
        """Set the adapters' scales for the next `counts[i]` rows, before each computation of a graph with adapters.

        Not while the graph is computed.
        """
        for which, factor, values in self._scales:
            values[: sum(counts)] = np.repeat([each.get(which, 0.0) * factor for each in scales], counts)

    def logits(self, row: int) -> np.ndarray:
        """(n_vocab,) float32 view, borrowed until the graph is computed again."""
        if not 0 <= row < self.batch.n_out:
            raise IndexError(f"row {row} has no logits")
        if self.native.best and not self.native.has_logits:
            lib.uma_forward_fetch(self.native)
        n_vocab = self.native.n_vocab
        return np.frombuffer(ffi.buffer(self.native.logits + row * n_vocab, 4 * n_vocab), np.float32)

    def hidden(self, n_rows: int) -> np.ndarray:
        """(n_rows, n_embd) float32: the outputs of a graph without a head. The caller owns the array."""
        return _rows(self.native.logits, n_rows, self.native.n_hidden)

    def kept(self) -> list[np.ndarray]:
        """An array (rows, n_embd) float32 for each hidden layer: of all rows, or of those with logits. The caller owns
        them.
        """
        return [_rows(lib.ggml_get_data(tensor), tensor.ne[1], tensor.ne[0]) for tensor in self._hidden]

    def close(self) -> None:
        if self.context:
            lib.ggml_free(self.context)
            self.context = None


def _rows(at: Any, n_rows: int, n_embd: int) -> np.ndarray:
    """A copy of (n_rows, n_embd) floats."""
    rows: np.ndarray = np.frombuffer(ffi.buffer(at, 4 * n_rows * n_embd), np.float32).reshape(n_rows, n_embd).copy()
    return rows


class Forwards:
    """Graphs by batch shape. Small batches, the decode ticks, keep theirs; of the large ones only the last is kept.

    With our operations on the CPU, graphs keep nothing in their memory, so small graphs share it: one of sixteen rows
    takes 10 MB for the logits of 152k tokens, and there are fifty. Graphs of a device keep masks there.
    """

    def __init__(self, network: Network, pages: Pages, compute: Compute) -> None:
        self._network = network
        self._pages = pages
        self._compute = compute
        self._small: OrderedDict[BatchShape, Forward] = OrderedDict()
        self._large: Forward | None = None
        self._space = Workspace(network.device)
        self._shared = None if network.device.is_stock else Workspace(network.device)

    def of(self, batch: BatchShape) -> Forward:
        """The graph of a batch. Raises: INSUFFICIENT_MEMORY."""
        found = self._small.get(batch)
        if found is not None:
            self._small.move_to_end(batch)
            return found
        if batch.n <= N_SMALL:
            return self._new_small(batch)
        if self._large is None or self._large.batch != batch:
            if self._large is not None:
                self._large.close()
                self._large = None
            self._large = self._new(batch, self._space)
        return self._large

    def _new_small(self, batch: BatchShape) -> Forward:
        while len(self._small) >= N_KEPT:
            _, oldest = self._small.popitem(last=False)
            self._close_small(oldest)
        if self._shared is not None:
            forward = self._new_sharing(batch, self._shared)
        else:
            workspace = Workspace(self._network.device)
            try:
                forward = self._new(batch, workspace)
            except BaseException:
                workspace.close()
                raise
        self._small[batch] = forward
        return forward

    def _new_sharing(self, batch: BatchShape, workspace: Workspace) -> Forward:
        n_moves = workspace.n_moves
        try:
            return self._new(batch, workspace)
        finally:
            if workspace.n_moves > n_moves:
                self._close_all_small()  # they have lost their memory, and are built again when needed

    def _close_small(self, forward: Forward) -> None:
        forward.close()
        if forward.workspace is not self._shared:
            forward.workspace.close()

    def _close_all_small(self) -> None:
        while self._small:
            self._close_small(self._small.popitem()[1])

    def _new(self, batch: BatchShape, workspace: Workspace) -> Forward:
        return Forward(self._network, self._pages, self._compute, batch, workspace)

    @property
    def n_bytes(self) -> int:
        if self._shared is not None:
            return self._space.n_bytes + self._shared.n_bytes
        return self._space.n_bytes + sum(forward.workspace.n_bytes for forward in list(self._small.values()))

    def close(self) -> None:
        self._close_all_small()
        if self._large is not None:
            self._large.close()
            self._large = None
        self._space.close()
        if self._shared is not None:
            self._shared.close()
