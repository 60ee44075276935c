"""A prompt's chunk in progress: its graph is computed in pieces (native/graph/slices.c), straight into the
sequence's own pages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uma_core.engine.api import PrefillOutcome, PrefillStatus, Rows
from uma_core.engine.graph.attention import BatchShape, Span
from uma_core.engine.graph.fitted import Fitted
from uma_core.engine.graph.forward import Compute, Network
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.states import Next
from uma_core.engine.graph.workspace import Workspace
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError


class PrefillSlot:
    """A slot that is free, or serves one sequence: `n_kv` positions are computed, `n_seen` of them handed over."""

    def __init__(self, network: Network, pages: Pages, compute: Compute, interrupt_flag: Any, n_most: int) -> None:
        """For chunks of up to `n_most` tokens. Owns the attention of `compute`, not its backend."""
        self._network = network
        self._pages = pages
        self._slices = lib.uma_slices_new(interrupt_flag)
        if not self._slices:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for a prefill slot")
        self._compute = compute
        self._space = Workspace(network.device)
        self._graph: Fitted | None = None
        self._run = ffi.new("uma_run *")
        self._rows = ffi.new("uma_rows *")
        self._n_most = max(2, n_most)  # one row alone is a graph of another kind
        self._pos = np.zeros(self._n_most, np.int32)
        self._seq = np.zeros(self._n_most, np.int32)
        self._want = np.zeros(self._n_most, np.int8)
        self._scales: dict[int, float] = {}  # scales of LoRA adapters
        self._hidden: Rows | None = None  # rows of the chunk whose hidden states are wanted
        self._n_rows = 0  # of that chunk
        # state after the chunks that are not handed over; None: there are none, or the model has no states
        self._state: int | None = None
        self._next: Next | None = None  # states of the chunk in progress
        self.drop()

    @property
    def _keeps_last(self) -> bool:
        """Whether the input of the vocabulary's head is wanted for every row: then chunks are computed to their end."""
        return self._network.shape.n_layer in self._network.hidden_layers

    @property
    def is_free(self) -> bool:
        return self.seq_id < 0

    @property
    def n_bytes(self) -> int:
        return self._space.n_bytes

    @property
    def adapters(self) -> tuple[int, ...]:
        """Adapters of the slot's graph."""
        return self._graph.most.adapters if self._graph is not None else ()

    def take(self, seq_id: int, n: int, scales: dict[int, float]) -> None:
        """Serve the sequence. `scales`: those of LoRA adapters."""
        self.seq_id = seq_id
        self._scales = scales
        self.n_kv = self.n_seen = n

    def start(self, tokens: np.ndarray, want_logits: bool, hidden: Rows | None = None) -> None:
        """Begin a chunk, whose pages must be reserved. For hidden states all rows are outputs, as they need no head.

        Raises: INSUFFICIENT_MEMORY.
        """
        n = len(tokens)
        self._hidden = hidden
        has_output = want_logits or bool(hidden) or self._keeps_last
        data = np.ascontiguousarray(tokens, np.int32)
        self._pos[:n] = np.arange(self.n_kv, self.n_kv + n, dtype=np.int32)
        self._seq[:n] = self.seq_id
        self._want[:n] = 0
        self._want[n - 1] = has_output
        rows = self._rows
        rows.n, rows.wake_fd = n, -1
        views = [ffi.from_buffer("int32_t *", array) for array in (data, self._pos, self._seq)]
        rows.token, rows.pos, rows.seq_id = views
        rows.want = ffi.from_buffer("int8_t *", self._want)
        span = self._compute.attention.span(rows, self._pages)
        forward = self._graph_of(span, tuple(sorted(self._scales)), hidden is None).fit(n, span)
        if self._scales:
            forward.scale([self._scales], [n])
        self._plan_states(n)
        if not lib.uma_forward_fill(forward.native, rows):
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for a chunk's plan")
        lib.uma_slices_start(self._slices, forward.native, n, has_output)
        self.n_chunk = self._n_rows = n

    def _plan_states(self, n: int) -> None:
        states, recurrence = self._pages.states, self._compute.attention.recurrence
        if states is None:
            return
        assert recurrence is not None
        stretches, (self._next,) = states.plan([(self.seq_id, self.n_kv, n)], self._state)
        recurrence.fill(states, stretches)

    def _graph_of(self, span: Span, adapters: tuple[int, ...], has_head: bool) -> Fitted:
        room = self._compute.attention.room(span, self._n_most)
        graph = self._graph
        if (
            graph is None
            or graph.most.n_span < room
            or graph.most.adapters != adapters
            or graph.most.has_head is not has_head
        ):
            self._close_graph()
            n_out, keeps_all = (1, self._keeps_last) if has_head else (self._n_most, False)
            most = BatchShape(self._n_most, n_out, room, adapters, has_head, keeps_all)
            graph = self._graph = Fitted(self._network, self._pages, self._compute, most, self._space)
        return graph

    def run(self, until_ns: int, quantum_ns: int, min_pieces: int) -> PrefillOutcome:
        run, broken = self._run, self._compute.broken
        if broken:
            return PrefillOutcome(PrefillStatus.FAILED, 0, 0.0, 0, 0)
        lib.uma_slices_run(self._slices, until_ns, max(1, quantum_ns), min_pieces, run)
        if run.rc == lib.UMA_BROKEN:
            broken.append("memory ran out while a prompt was read")
        status = PrefillStatus.PAUSED
        if run.is_done:
            status = PrefillStatus.DONE if run.rc == 0 else PrefillStatus.FAILED
            self.n_kv += self.n_chunk if run.rc == 0 else 0
            self.n_chunk = 0
            self._end_chunk(run.rc == 0)
        return PrefillOutcome(status, run.n_pieces, run.fraction, run.elapsed_ns, run.longest_ns)

    def logits(self) -> np.ndarray:
        assert self._graph is not None
        return self._graph.forward.logits(0)

    def sample(self, sampler: Any) -> int:
        assert self._graph is not None
        return int(lib.uma_sample(self._graph.forward.native.logits, self._network.shape.n_vocab, sampler))

    def hidden(self) -> np.ndarray:
        """(rows, n_embd) float32: the rows that `start` was asked for."""
        assert self._graph is not None
        if self._hidden is None and self._network.hidden_layers:
            return np.concatenate(self._graph.forward.kept(), axis=1)
        if not self._hidden:
            return np.zeros((0, self._network.shape.n_embd), np.float32)
        rows = self._graph.forward.hidden(self._n_rows)
        return {Rows.LAST: rows[-1:], Rows.FIRST: rows[:1]}.get(self._hidden, rows)

    def _end_chunk(self, is_computed: bool) -> None:
        """Take the state that the chunk made, or drop it if the chunk was not computed."""
        states, made = self._pages.states, self._next
        self._next = None
        if states is None or made is None:
            return
        if not is_computed:
            states.drop(made)
            return
        states.keep(made)
        if self._state is not None:
            states.give(self._state)
        self._state = made.end

    def publish(self) -> None:
        """Make the computed positions count as the sequence's from now on."""
        if self._state is not None:
            assert self._pages.states is not None
            self._pages.states.put(self.seq_id, self._state)
            self._state = None
        self.drop()

    def drop(self) -> None:
        """Free the slot. A paused chunk is simply forgotten, and positions that were not handed over are dropped."""
        self._end_chunk(False)
        if self._state is not None:
            assert self._pages.states is not None
            self._pages.states.give(self._state)
            self._state = None
        self.seq_id = -1
        self._scales = {}
        self.n_kv = self.n_seen = self.n_chunk = 0

    def _close_graph(self) -> None:
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def close(self) -> None:
        self._close_graph()
        self._space.close()
        self._compute.attention.close()
        if self._slices:
            lib.uma_slices_free(self._slices)
            self._slices = None
