"""Prefill slots: contexts that read one prompt chunk each and pause between pieces of its graph
(native/llama/prefill.c).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uma_core.engine.api import PrefillOutcome, PrefillStatus, Rows
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.decode import NO_CELLS, DecodeContext, Hidden, Kept, view_logits
from uma_core.engine.llama.kv import Move, Span
from uma_core.engine.llama.model import LlamaModel, new_context
from uma_core.engine.refusals import refusals
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import AdapterSet

FILL_NS = 5_000_000  # time of copying between two looks at the interrupt flag
WARM_UP_SEQ = 0
WARM_UP_TOKENS = 64  # a common tile size: a row takes as long in larger chunks


class PrefillSlot:
    """Owns a one-sequence context and its resumable call. Free, or serving one sequence of the decode context.

    `n_kv` positions of that sequence are in the slot's cache; the first `n_shared` of them are also in the
    decode context's. A free slot stays warm: its cache still holds `warm_seq`'s positions, so that the
    prompt's next chunk needs no copy back.
    """

    def __init__(self, model: LlamaModel, params: Any, interrupt_flag: Any) -> None:
        self.handle: Any = None
        self.is_broken = False  # if True, it must be neither used nor freed
        self.adapters: AdapterSet = ()  # adapters that it computes with
        self.native = lib.uma_prefill_new(params.n_ubatch)
        if not self.native:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for a prefill slot")
        params.cb_eval = ffi.addressof(lib, "uma_prefill_cb")
        params.cb_eval_user_data = self.native
        self.handle = new_context(model, params, "prefill")
        lib.uma_prefill_bind(self.native, self.handle, interrupt_flag)
        self.gate = lib.uma_prefill_gate(self.native)
        self._hidden = Hidden(self.gate, model.n_embd)
        self.kept = Kept(self.handle, model.hidden_layers, model.n_embd)
        self._is_embedded = False  # the chunk's hidden states are wanted, not its logits
        self.n_outputs = int(params.n_outputs_max)
        self.memory = lib.llama_get_memory(self.handle)
        self.n_cells = int(lib.llama_n_ctx(self.handle))
        self.n_batch = int(lib.llama_n_batch(self.handle))
        self.n_vocab = model.n_vocab
        self.seq_id = -1
        self.warm_seq = -1
        self.n_kv = 0
        self.n_shared = 0
        self.n_chunk = 0
        self.n_chunk_done = 0
        self._fill: Move | None = None  # copies cells that the decode context has and the slot lacks
        self._interrupt_flag = interrupt_flag
        self._run = ffi.new("uma_run *")

    def learn(self) -> None:
        """Read a chunk once, so that pieces are predicted from measurements as of the first prompt."""
        self.take(WARM_UP_SEQ, None, 0, 0)
        for _ in range(2):
            self.start(np.zeros(min(WARM_UP_TOKENS, self.n_batch), np.int32), False)
            self.run(2**62, 1, 0)
        self.drop()

    @property
    def is_free(self) -> bool:
        return self.seq_id < 0

    def take(self, seq_id: int, source: DecodeContext | None, n_cells: int, n: int) -> None:
        """Serve `seq_id`, whose first n positions are in the decode context.

        The next `run`s copy the cells that the slot lacks, in slices: after a restored prefix they are nearly all of
        the prompt.
        """
        n_warm = min(self.n_kv, n) if self.warm_seq == seq_id else 0
        self.kv_truncate(0, n_warm)
        self.seq_id = self.warm_seq = seq_id
        if n > n_warm:
            assert source is not None
            self._fill = Move(
                Span(source.gate, seq_id, n_cells), Span(self.gate, 0, self.n_cells), n_warm, n, (self, 0)
            )
        self.n_kv = self.n_shared = n

    def kv_truncate(self, seq_id: int, n: int) -> bool:
        return bool(lib.llama_memory_seq_rm(self.memory, seq_id, n, -1))

    def forget(self, n: int) -> None:
        """Note that the sequence for which the slot is warm has only its first n positions left."""
        self.n_kv = min(self.n_kv, n)

    def _fill_up(self, until_ns: int) -> bool:
        """Copy cells of the decode context that the slot lacks. True when it has all of them."""
        while self._fill is not None and not self._interrupt_flag[0]:
            if self._fill.step(min(until_ns, lib.uma_now_ns() + FILL_NS)):
                self._fill = None
            elif lib.uma_now_ns() >= until_ns:
                break
        return self._fill is None

    def start(self, tokens: np.ndarray, want_logits: bool, hidden: Rows | None = None) -> None:
        n = self.n_chunk = len(tokens)
        self._is_embedded = hidden is not None
        data = np.ascontiguousarray(tokens, np.int32)
        if hidden is not None:
            self._hidden.open({Rows.NONE: 0, Rows.ALL: n}.get(hidden, 1))
        want = int(want_logits) if hidden is None else int(hidden)
        lib.uma_prefill_start(self.native, ffi.from_buffer("llama_token *", data), n, self.n_kv, want)

    def run(self, until_ns: int, quantum_ns: int, min_pieces: int) -> PrefillOutcome:
        run = self._run
        t0 = lib.uma_now_ns()
        if self.is_broken:
            return PrefillOutcome(PrefillStatus.FAILED, 0, 0.0, 0, 0)
        if not self._fill_up(until_ns):
            return PrefillOutcome(PrefillStatus.PAUSED, 0, 0.0, lib.uma_now_ns() - t0, 0)
        lib.uma_prefill_run(self.native, until_ns, max(1, quantum_ns), min_pieces, run)
        status = PrefillStatus.PAUSED
        if run.is_done:
            status = PrefillStatus.DONE if run.rc == 0 else PrefillStatus.FAILED
            self.is_broken = run.rc == lib.UMA_BROKEN
            if run.rc == NO_CELLS:
                refusals.add()
            if run.rc == 0:
                self.n_kv += self.n_chunk
            elif not self.is_broken:
                lib.llama_memory_seq_rm(self.memory, 0, self.n_kv, -1)
        outcome = PrefillOutcome(status, run.n_pieces, run.fraction, run.elapsed_ns, run.longest_ns)
        if run.is_done:
            self.n_chunk_done, self.n_chunk = self.n_chunk, 0
            self._hidden.close()
        return outcome

    def hidden(self) -> np.ndarray:
        """(rows, n) float32: the hidden states for an embedding, or those that are kept of all tokens."""
        return self._hidden.take() if self._is_embedded or not self.kept else self.kept.rows(self.n_chunk_done)

    def logits(self) -> np.ndarray:
        return view_logits(self.handle, self.n_chunk_done - 1, self.n_vocab)

    def sample(self, sampler: Any) -> int:
        pointer = lib.llama_get_logits_ith(self.handle, self.n_chunk_done - 1)
        return int(lib.uma_sample(pointer, self.n_vocab, sampler)) if pointer else -1

    def release(self) -> None:
        """Free the slot after its KV was published; it stays warm."""
        self.seq_id = -1

    def drop(self) -> None:
        """Free the slot, which is cold then. A paused chunk is cancelled."""
        if self.n_chunk:
            lib.uma_prefill_cancel(self.native)
            self.n_chunk = 0
        self._hidden.close()
        self._fill = None
        if not self.is_broken:
            lib.llama_memory_seq_rm(self.memory, 0, -1, -1)
        self.seq_id = self.warm_seq = -1
        self.n_kv = self.n_shared = 0

    def close(self) -> None:
        if self.handle:
            self.drop()
            if not self.is_broken:
                lib.llama_free(self.handle)
                lib.uma_prefill_free(self.native)
            self.handle = None
