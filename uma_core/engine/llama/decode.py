"""The decode context: KV of all sequences, one decode call at a time. The same C call samples the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from uma_core.engine.api import Batch, DecodeOutcome, DecodeStatus, Sampler
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.model import LlamaModel, new_context
from uma_core.engine.refusals import refusals
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import AdapterSet, TokenId

NO_CELLS = 1  # llama_decode's code for a lack of cells
BAD = DecodeOutcome(DecodeStatus.BAD_BATCH, [], 0, 0)
BROKEN = BAD._replace(status=DecodeStatus.FATAL)
STATUS_OF = {0: DecodeStatus.OK, 1: DecodeStatus.FULL, 2: DecodeStatus.ABORTED, -1: DecodeStatus.BAD_BATCH}


class Hidden:
    """Where a context's gate puts hidden states. `open` before a call that wants them, `close` after it."""

    def __init__(self, gate: Any, n_embd: int) -> None:
        self._gate = gate
        self._n_embd = n_embd
        self._rows = np.zeros((0, n_embd), np.float32)

    def open(self, n_rows: int) -> None:
        self._rows = np.empty((n_rows, self._n_embd), np.float32)
        self._gate.hidden = ffi.from_buffer("float *", self._rows) if n_rows else ffi.NULL
        self._gate.hidden_max, self._gate.n_hidden = self._rows.size, 0

    def close(self) -> None:
        self._gate.hidden = ffi.NULL

    def take(self) -> np.ndarray:
        """(rows, n_embd) float32. Raises: UNSUPPORTED if the model's graph has no such rows."""
        rows, self._rows = self._rows, np.zeros((0, self._n_embd), np.float32)
        if self._gate.n_hidden != rows.size:
            raise UmaError(
                ErrorCode.UNSUPPORTED,
                "llama.cpp's graph of this architecture exposes no hidden states to compute a vector from",
            )
        return rows


class Kept:
    """Inputs of layers that a context keeps from every call, for drafters that read them. `layers` empty: none."""

    def __init__(self, context: Any, layers: Sequence[int], n_embd: int) -> None:
        self._context = context
        self._layers = tuple(layers)
        self._n_embd = n_embd
        for layer in dict.fromkeys(self._layers):
            lib.uma_hidden_keep(context, layer)

    def __bool__(self) -> bool:
        return bool(self._layers)

    def rows(self, n: int) -> np.ndarray:
        """(n, layers * n_embd) float32 of the last call's n tokens. The caller owns the array."""
        parts = []
        for layer in self._layers:
            at = lib.uma_hidden_rows(self._context, layer)
            if not at:
                return np.zeros((0, len(self._layers) * self._n_embd), np.float32)
            parts.append(np.frombuffer(ffi.buffer(at, 4 * n * self._n_embd), np.float32).reshape(n, self._n_embd))
        return np.concatenate(parts, axis=1)


class DecodeContext:
    """Owns a llama_context with a gate (native/llama/gate.c) as its eval callback.

    The gate's struct and the abort flag are memory that C reads during compute: both live as long as this.
    """

    def __init__(self, model: LlamaModel, params: Any) -> None:
        self.is_broken = False  # if True, it must be neither used nor freed
        self.adapters: AdapterSet = ()  # adapters that it computes with
        self.gate = ffi.new("uma_gate *")
        self.abort_flag = ffi.new("int32_t *")
        params.cb_eval = ffi.addressof(lib, "uma_gate_cb")
        params.cb_eval_user_data = self.gate
        params.abort_callback = ffi.addressof(lib, "uma_abort_cb")
        params.abort_callback_data = self.abort_flag
        self.handle = new_context(model, params, "decode")
        self.memory = lib.llama_get_memory(self.handle)
        self._hidden = Hidden(self.gate, model.n_embd)
        self.kept = Kept(self.handle, model.hidden_layers, model.n_embd)
        self._is_embedded = False  # the last call's hidden states were wanted, not its logits
        self.n_outputs = int(params.n_outputs_max)
        self.n_vocab = model.n_vocab
        self.n_batch = int(lib.llama_n_batch(self.handle))
        self._rows = ffi.new("uma_rows *")
        self._views: tuple[Batch | None, list[Any]] = (None, [])
        self._handles = ffi.new("uma_sampler *[]", max(1, params.n_outputs_max))
        self._out = ffi.new("llama_token[]", max(1, params.n_outputs_max))
        self._samplers: Sequence[Sampler | None] | None = None  # samplers whose handles are set

    def _point_at(self, batch: Batch) -> None:
        """Wrap a batch's buffers, once for each batch: batches are reused tick after tick."""
        if self._views[0] is not batch:
            rows = self._rows
            views = [ffi.from_buffer(f"{t} *", a) for t, a in _fields(batch)]
            rows.token, rows.pos, rows.seq_id, rows.want = views
            rows.sampler, rows.out = self._handles, self._out
            self._views = (batch, views)

    def decode(self, batch: Batch, samplers: Sequence[Sampler | None]) -> DecodeOutcome:
        if not 0 < batch.n <= self.n_batch:  # llama.cpp would fail an assertion
            return BAD
        self._point_at(batch)
        rows = self._rows
        rows.n, rows.wake_fd = batch.n, batch.wake_fd
        if samplers is not self._samplers:
            self._samplers = samplers
            for i, sampler in enumerate(samplers):
                self._handles[i] = ffi.NULL if sampler is None else sampler.handle  # type: ignore[attr-defined]
        if self.is_broken:
            return BROKEN
        self._is_embedded = batch.want_hidden
        if batch.want_hidden:
            return self._decode_hidden(batch)
        rc = lib.uma_decode(self.handle, rows)
        self.is_broken = rc == lib.UMA_BROKEN
        if rc == NO_CELLS:
            refusals.add()
        tokens: list[TokenId] = ffi.unpack(self._out, batch.n_rows) if rc == 0 and batch.n_rows else []
        return DecodeOutcome(STATUS_OF.get(rc, DecodeStatus.FATAL), tokens, rows.call_ns, rows.sample_ns)

    def _decode_hidden(self, batch: Batch) -> DecodeOutcome:
        if batch.n_rows > self.n_outputs:
            return BAD
        rows = self._rows
        self._hidden.open(batch.n_rows)
        rows.out = ffi.NULL
        try:
            rc = lib.uma_decode(self.handle, rows)
        finally:
            rows.out = self._out
            self._hidden.close()
        self.is_broken = rc == lib.UMA_BROKEN
        if rc == NO_CELLS:
            refusals.add()
        return DecodeOutcome(STATUS_OF.get(rc, DecodeStatus.FATAL), [], rows.call_ns, 0)

    def hidden(self) -> np.ndarray:
        """(rows, n) float32: the hidden states for an embedding, or those that are kept of rows with logits."""
        batch, _ = self._views
        if batch is None or self._is_embedded or not self.kept:
            return self._hidden.take()
        rows: np.ndarray = self.kept.rows(batch.n)
        return rows[batch.want_logits[: batch.n] != 0] if len(rows) else rows

    def draw(self, row: int, sampler: Any) -> TokenId:
        """Draw the token of the row-th wanted row."""
        return int(lib.uma_decode_draw(self.handle, row, sampler))

    def logits(self, row: int) -> np.ndarray:
        """Logits of the row-th wanted row. (llama.h addresses logits by position in the batch.)"""
        batch, _ = self._views
        assert batch is not None
        index = int(np.flatnonzero(batch.want_logits[: self._rows.n])[row])
        return view_logits(self.handle, index, self.n_vocab)

    def kv_len(self, seq_id: int) -> int:
        return int(lib.llama_memory_seq_pos_max(self.memory, seq_id)) + 1

    def kv_truncate(self, seq_id: int, n: int) -> bool:
        return bool(lib.llama_memory_seq_rm(self.memory, seq_id, n, -1))

    def close(self) -> None:
        if self.gate.copier:
            lib.ggml_backend_free(self.gate.copier)
            self.gate.copier = ffi.NULL
        if self.handle:
            if not self.is_broken:
                lib.llama_free(self.handle)
            self.handle = None


def _fields(batch: Batch) -> list[tuple[str, np.ndarray]]:
    return [
        ("llama_token", batch.tokens),
        ("llama_pos", batch.pos),
        ("llama_seq_id", batch.seq_id),
        ("int8_t", batch.want_logits),
    ]


def view_logits(context: Any, index: int, n_vocab: int) -> np.ndarray:
    """(n_vocab,) float32 view of llama_get_logits_ith, borrowed until the context's next decode."""
    pointer = lib.llama_get_logits_ith(context, index)
    if not pointer:
        raise IndexError(f"batch position {index} has no logits")
    return np.frombuffer(ffi.buffer(pointer, 4 * n_vocab), np.float32)
