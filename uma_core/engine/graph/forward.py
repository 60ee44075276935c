"""A model's graph of one batch shape, with its memory; and who keeps them between batches of the same shape."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from uma_core.engine.graph.builder import Builder, KvPlan, PagedPair
from uma_core.engine.graph.families import Family
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.shape import Shape
from uma_core.engine.graph.weights import Weights
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError

NODES_PER_LAYER = 40  # a dense layer takes about 26 nodes and views; experts add as many as are used
NODES_BESIDE = 64
N_SMALL = 16  # batches of up to so many tokens keep graph and memory each, larger ones share one memory
N_KEPT = 32  # small ones


class Network:
    """What every graph of one loaded model has in common."""

    def __init__(self, shape: Shape, weights: Weights, family: Family, rope_mode: int) -> None:
        self.shape = shape
        self.weights = weights
        self.family = family
        self.rope_mode = rope_mode

    @property
    def n_nodes(self) -> int:
        return self.shape.n_layer * (NODES_PER_LAYER + 2 * self.shape.n_expert_used) + NODES_BESIDE

    def build(self, context: Any, counts: tuple[int, int], kv: KvPlan, paged: PagedPair) -> tuple[Builder, Any]:
        """Append a batch of (tokens, wanted rows) to a new graph. Returns the builder with its inputs, and the logits or None."""
        graph = lib.ggml_new_graph_custom(context, self.n_nodes, False)
        builder = Builder(context, graph, self.weights, self.shape)
        builder.start(counts, kv, paged, self.rope_mode)
        logits = self.family(builder)
        if logits is not None:
            lib.ggml_set_output(logits)
            lib.ggml_build_forward_expand(graph, logits)
        return builder, logits

    def new_context(self) -> Any:
        """A ggml_context that holds a graph's nodes, not their data. Raises: INSUFFICIENT_MEMORY."""
        size = self.n_nodes * lib.ggml_tensor_overhead() + lib.ggml_graph_overhead_custom(self.n_nodes, False)
        context = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": size, "no_alloc": True})[0])
        if not context:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for a graph")
        return context


class Workspace:
    """Memory for the data of one graph's nodes; it grows to what the largest graph needed."""

    def __init__(self) -> None:
        self._allocator = lib.ggml_gallocr_new(lib.ggml_backend_cpu_buffer_type())

    def place(self, graph: Any) -> None:
        """Give every node of `graph` its memory. Raises: INSUFFICIENT_MEMORY."""
        if not lib.ggml_gallocr_alloc_graph(self._allocator, graph):
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for a graph's data")

    @property
    def n_bytes(self) -> int:
        return int(lib.ggml_gallocr_get_buffer_size(self._allocator, 0))

    def close(self) -> None:
        if self._allocator:
            lib.ggml_gallocr_free(self._allocator)
            self._allocator = None


class Forward:
    """One graph, placed in a workspace. `native` is what native/forward.c works on.

    It is computed any number of times, as long as its workspace places no other graph.
    """

    def __init__(self, network: Network, pages: Pages, engine: tuple[Any, PagedPair], counts: tuple[int, int], workspace: Workspace) -> None:
        backend, paged = engine
        self.counts = counts
        self.workspace = workspace
        self._context = network.new_context()
        builder, logits = network.build(self._context, counts, pages.plan, paged)
        workspace.place(builder.graph)
        self.native = ffi.new("uma_forward *")
        n = self.native
        n.backend, n.graph = backend, builder.graph
        n.paged, n.window = paged
        n.pages, n.n_pages_seq = pages.table_pointer, pages.table.shape[1]
        n.n_head_kv, n.page_rows, n.n_vocab = network.shape.n_head_kv, pages.plan.page_rows, network.shape.n_vocab
        n.token, n.pos, n.cell = (ffi.cast(f"{kind} *", lib.ggml_get_data(t)) for kind, t in _inputs(builder))
        n.out_id = ffi.NULL if builder.out_id is None else ffi.cast("int32_t *", lib.ggml_get_data(builder.out_id))
        n.logits = ffi.NULL if logits is None else ffi.cast("float *", lib.ggml_get_data(logits))

    def logits(self, row: int) -> np.ndarray:
        """(n_vocab,) float32 view, borrowed until the graph is computed again."""
        if not 0 <= row < self.counts[1]:
            raise IndexError(f"row {row} has no logits")
        n_vocab = self.native.n_vocab
        return np.frombuffer(ffi.buffer(self.native.logits + row * n_vocab, 4 * n_vocab), np.float32)

    def close(self) -> None:
        if self._context:
            lib.ggml_free(self._context)
            self._context = None


def _inputs(builder: Builder) -> list[tuple[str, Any]]:
    return [("int32_t", builder.token), ("int32_t", builder.pos), ("int64_t", builder.cell)]


class Forwards:
    """Graphs by batch shape. Small batches, the decode ticks, keep theirs; of the large ones only the last is kept."""

    def __init__(self, network: Network, pages: Pages, backend: Any, paged: PagedPair) -> None:
        self._network = network
        self._pages = pages
        self._engine = (backend, paged)
        self._small: OrderedDict[tuple[int, int], Forward] = OrderedDict()
        self._large: Forward | None = None
        self._space = Workspace()

    def of(self, n: int, n_out: int) -> Forward:
        """The graph of n tokens of which n_out want logits. Raises: INSUFFICIENT_MEMORY."""
        key = (n, n_out)
        found = self._small.get(key)
        if found is not None:
            self._small.move_to_end(key)
            return found
        if n <= N_SMALL:
            return self._new_small(key)
        if self._large is None or self._large.counts != key:
            if self._large is not None:
                self._large.close()
                self._large = None
            self._large = self._new(key, self._space)
        return self._large

    def _new_small(self, key: tuple[int, int]) -> Forward:
        while len(self._small) >= N_KEPT:
            _, oldest = self._small.popitem(last=False)
            oldest.close()
            oldest.workspace.close()
        self._small[key] = self._new(key, Workspace())
        return self._small[key]

    def _new(self, key: tuple[int, int], workspace: Workspace) -> Forward:
        return Forward(self._network, self._pages, self._engine, key, workspace)

    @property
    def n_bytes(self) -> int:
        return self._space.n_bytes + sum(forward.workspace.n_bytes for forward in self._small.values())

    def close(self) -> None:
        for forward in self._small.values():
            forward.close()
            forward.workspace.close()
        self._small.clear()
        if self._large is not None:
            self._large.close()
            self._large = None
        self._space.close()
