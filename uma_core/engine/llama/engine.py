"""LlamaEngine: the Engine contract over llama.h. It only connects model, decode context and prefill slots.

Prompts are read in prefill slots (their own contexts over the same weights), so that a chunk can pause between
pieces of its graph. Each finished chunk's KV is copied into the decode context. That needs one KV stream per
sequence, V stored by rows, and one cache per layer. `probe` proves this on the loaded model; if it fails, the decode
context reads prompts in sized chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from uma_core.engine.api import (
    NO_PAGES,
    ROWS_OF,
    Batch,
    Capabilities,
    DecodeOutcome,
    DecodeStatus,
    EmbeddingInfo,
    EngineInfo,
    Export,
    MemoryUse,
    Progress,
    Rows,
    Sampler,
    Transfer,
)
from uma_core.engine.base import DEFAULT_POOLING, GeneratorBase
from uma_core.engine.devices import backend_name, device_names
from uma_core.engine.header import Header
from uma_core.engine.kernels import isa_notes, use_kernels
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.decode import BAD, DecodeContext
from uma_core.engine.llama.estimate import compute_bytes, kv_bytes
from uma_core.engine.llama.kv import MARK_TOKENS_MAX, HostExport, Move, Span
from uma_core.engine.llama.log import tap
from uma_core.engine.llama.lora import LlamaAdapters
from uma_core.engine.llama.model import LlamaModel
from uma_core.engine.llama.pages import release_stream, touch_stream
from uma_core.engine.llama.params import (
    check_threads,
    decode_params,
    is_unified,
    n_outputs,
    n_threads_of,
    prefill_params,
)
from uma_core.engine.llama.prefill import PrefillSlot
from uma_core.engine.llama.probe import discover, proves_direct_kv, warm_up
from uma_core.engine.refusals import refusals
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import AdapterSet, SeqId


class LlamaEngine(GeneratorBase[PrefillSlot]):
    """See engine.api.Engine for every method's contract. `options` is the `engine` section of the configuration."""

    def __init__(self, path: str, options: Any, progress: Progress | None = None) -> None:
        self._interrupt_flag = ffi.new("int32_t *")
        self._kernels = use_kernels(options.cpu_kernels, options.isa)
        self.model = LlamaModel(path, options, progress)
        self.decoder: DecodeContext | None = None
        self.prefill_slots: list[PrefillSlot] = []
        self._sets: list[AdapterSet] = [()] * options.n_seq  # adapters by sequence
        # by sequence, tokens that a recurrent memory can take back: those after its first row in the last call
        self._n_undo: dict[SeqId, int] = {}
        try:
            self._adapters = LlamaAdapters(self.model, options)
            self._open(options)
        except BaseException:
            self.close()
            raise

    def _open(self, options: Any) -> None:
        mark = tap.pump()
        n_trained = int(lib.llama_model_n_ctx_train(self.model.handle))  # negative if it is too large for llama.cpp
        self.decoder = DecodeContext(self.model, decode_params(options, n_trained))
        self._kv_bytes = kv_bytes(mark)
        self.n_ctx_seq = int(lib.llama_n_ctx_seq(self.decoder.handle))
        if is_unified(options) and n_trained > 0:  # the pool may be larger than what one sequence was trained for
            self.n_ctx_seq = min(self.n_ctx_seq, n_trained)
        check_threads(n_threads_of(options))
        warm_up(self.decoder)
        notes = discover(self.decoder, self.model)
        if not notes and not is_unified(options) and options.prefill_lanes:
            self._open_prefill_slots(options)
            if not proves_direct_kv(self):
                notes.append("copied KV differs from computed KV on this model: prompts are read in sized chunks")
                self._close_prefill_slots()
        elif is_unified(options):
            notes.append("unified KV: prompts are read in sized chunks")
        self._has_direct_kv = bool(self.prefill_slots)
        if not self._has_direct_kv:
            notes.append(NO_COPIES)
        if self._has_direct_kv:
            lib.uma_kv_release_pages(self.decoder.gate)
        self._compute_bytes = compute_bytes(mark)
        self.info = self._describe(options, (*notes, *self._adapters.notes, *isa_notes(options.isa, self._kernels)))

    def _open_prefill_slots(self, options: Any) -> None:
        assert self.decoder is not None
        lib.uma_kv_open_copier(self.decoder.gate)
        for _ in range(options.prefill_lanes):
            with tap.quiet():  # the decode context has already given the same warnings
                slot = PrefillSlot(
                    self.model, prefill_params(options, self.n_ctx_seq, self.model.n_vocab), self._interrupt_flag
                )
            self.prefill_slots.append(slot)
            warm_up(slot)
            discover(slot, self.model)
            slot.gate.copier = self.decoder.gate.copier
            slot.learn()
            lib.uma_kv_release_pages(slot.gate)

    def _close_prefill_slots(self) -> None:
        for slot in self.prefill_slots:
            slot.close()
        self.prefill_slots.clear()

    def _describe(self, options: Any, notes: tuple[str, ...]) -> EngineInfo:
        model, context = self.model, self.decoder
        assert context is not None
        n_layer = int(lib.llama_model_n_layer(model.handle))
        is_rollback = not model.is_recurrent and int(lib.llama_model_n_swa(model.handle)) == 0
        n_undo = options.n_batch if is_rollback else int(lib.llama_n_rs_seq(context.handle))
        n_batch = int(lib.llama_n_batch(context.handle))  # no more than the context that was asked for
        n_verify = min(n_outputs(options), n_batch, n_undo + 1) if n_undo else 0
        n_ctx = int(lib.llama_n_ctx(context.handle))
        n_ctx_train = int(lib.llama_model_n_ctx_train(model.handle))
        n_ctx_orig = model.meta_int("rope.scaling.original_context_length") or n_ctx_train
        n_expert_used = (
            (options.moe_top_k or model.meta_int("expert_used_count")) if model.meta_int("expert_count") else 0
        )
        return EngineInfo(
            engine="llama",
            model_name=model.name,
            model_path=model.path,
            fingerprint=model.fingerprint,
            arch=model.arch,
            backend=backend_name(),
            devices=device_names(),
            n_vocab=model.n_vocab,
            suppressed=model.suppressed,
            n_outputs=n_outputs(options),
            n_layer=n_layer,
            n_ctx_train=n_ctx_train,
            n_ctx=n_ctx,
            n_ctx_seq=self.n_ctx_seq,
            n_seq_max=options.n_seq,
            n_batch=n_batch,
            n_ubatch=int(lib.llama_n_ubatch(context.handle)),
            n_threads=n_threads_of(options),
            is_unified=is_unified(options),
            kv_type=options.kv_type,
            kv_bytes_per_cell=_bytes_per_cell(context.gate),
            weight_bytes=int(lib.llama_model_size(model.handle)),
            n_expert=model.meta_int("expert_count"),
            n_expert_used=n_expert_used,
            expert_bytes=_expert_bytes(model.path) if model.meta_int("expert_count") else 0,
            capabilities=Capabilities(
                n_prefill_slots=len(self.prefill_slots),
                can_rollback=is_rollback,
                can_copy_prefix=self._has_direct_kv,
                can_abort=backend_name() == "cpu",
                can_mix_rows=is_unified(options),
                can_mix_adapters=False,
                n_verify_rows=n_verify,
                keeps_hidden=bool(model.hidden_layers),
            ),
            adapters=self._adapters.infos,
            embedding=EmbeddingInfo(
                n_embd=model.n_embd,
                pooling=model.pooling or DEFAULT_POOLING,
                poolings=tuple(ROWS_OF),
                n_input=self.n_ctx_seq,
                n_rows=(self.prefill_slots[0] if self.prefill_slots else context).n_outputs,
            ),
            kernels=self._kernels,
            kv_facts=(self._kernels, n_expert_used, int(self.n_ctx_seq > n_ctx_orig)),
            notes=notes,
        )

    # decode

    def set_adapters(self, seq_id: SeqId, adapters: AdapterSet) -> None:
        self._sets[seq_id] = adapters

    def decode(self, batch: Batch, samplers: Sequence[Sampler | None]) -> DecodeOutcome:
        assert self.decoder is not None
        if self._adapters.infos and batch.n:
            first, *others = {self._sets[seq_id] for seq_id in batch.seq_id[: batch.n].tolist()}
            if others:
                return BAD
            self._use(self.decoder, first)
        outcome = self.decoder.decode(batch, samplers)
        can = self.info.capabilities
        if can.n_verify_rows and not can.can_rollback:
            is_ok = outcome.status is DecodeStatus.OK and batch.n <= can.n_verify_rows
            self._n_undo = _n_drafts(batch) if is_ok else {}
        if outcome.status is DecodeStatus.ABORTED:
            self.decoder.abort_flag[0] = 0  # one abort stops one call
        return outcome

    def _use(self, place: DecodeContext | PrefillSlot, adapters: AdapterSet) -> None:
        if place.adapters != adapters and not place.is_broken:
            self._adapters.set(place.handle, adapters)
            place.adapters = adapters

    def begin_next(self, wake_fd: int) -> None:
        """Do nothing: with an eval callback, llama_decode returns only when all is computed."""

    def sync(self) -> None:
        """Do nothing: no call is started ahead."""

    # resumable prefill

    def _pick_slot(self, seq_id: SeqId) -> PrefillSlot | None:
        """Pick a slot for the sequence. Raises: DECODE_FAILED if every slot is broken."""
        usable = [slot for slot in self.prefill_slots if not slot.is_broken]
        if not usable:
            raise UmaError(ErrorCode.DECODE_FAILED, "memory ran out while a prompt was read; reload the model")
        free = [slot for slot in usable if slot.is_free]
        warm = [slot for slot in free if slot.warm_seq == seq_id]
        cold = [slot for slot in free if slot.warm_seq < 0]
        return next(iter([*warm, *cold, *free]), None)

    def prefill_open(self, seq_id: SeqId, tokens: np.ndarray, want_logits: bool, hidden: Rows | None = None) -> bool:
        assert self.decoder is not None
        slot = self._slot(seq_id)
        if slot is None:
            slot = self._pick_slot(seq_id)
            if slot is None:
                return False
            slot.take(seq_id, self.decoder, self.n_ctx_seq, self.decoder.kv_len(seq_id))
        if slot.n_chunk or len(tokens) > self.info.n_ubatch or slot.n_kv + len(tokens) > slot.n_cells:
            raise UmaError(ErrorCode.BAD_BATCH, "a chunk is in progress, or it does not fit")
        if hidden is Rows.ALL and len(tokens) > slot.n_outputs:
            raise UmaError(ErrorCode.BAD_BATCH, f"at most {slot.n_outputs} hidden states of one chunk")
        self._use(slot, self._sets[seq_id])
        slot.start(tokens, want_logits, hidden)
        return True

    def publish_kv(self, seq_id: SeqId) -> Transfer:
        assert self.decoder is not None
        slot = self._busy_slot(seq_id)
        source = Span(slot.gate, 0, slot.n_cells)
        target = Span(self.decoder.gate, seq_id, self.n_ctx_seq)
        return Move(source, target, slot.n_shared, slot.n_kv, (self.decoder, seq_id)).then(slot.release)

    def prefill_close(self, seq_id: SeqId) -> None:
        slot = self._slot(seq_id)
        if slot is not None:
            slot.drop()

    # KV memory

    def kv_len(self, seq_id: SeqId) -> int:
        assert self.decoder is not None
        return self.decoder.kv_len(seq_id)

    def kv_pages(self, seq_id: SeqId, n: int) -> np.ndarray:
        return NO_PAGES

    def kv_truncate(self, seq_id: SeqId, n: int) -> bool:
        assert self.decoder is not None
        for slot in self.prefill_slots:
            if slot.is_free and slot.warm_seq == seq_id:
                slot.forget(n)
        n_less = self.kv_len(seq_id) - n
        if n > 0 and n_less > 0 and not self.info.capabilities.can_rollback and n_less > self._n_undo.pop(seq_id, 0):
            return False
        return self.decoder.kv_truncate(seq_id, n)

    def copy_prefix(self, src: SeqId, dst: SeqId, n: int, start: int = 0) -> Transfer:
        assert self.decoder is not None and self._has_direct_kv
        gate = self.decoder.gate
        return Move(Span(gate, src, self.n_ctx_seq), Span(gate, dst, self.n_ctx_seq), start, n, (self.decoder, dst))

    def export_state(self, seq_id: SeqId, n: int, start: int = 0) -> Export:
        assert self.decoder is not None and self._has_direct_kv
        return HostExport(Span(self.decoder.gate, seq_id, self.n_ctx_seq), start, n)

    def import_state(
        self, seq_id: SeqId, blob: bytes | bytearray | memoryview, n: int, start: int = 0, origin: int = 0
    ) -> Transfer:
        assert self.decoder is not None and self._has_direct_kv
        n_held, rest = divmod(len(blob), self.info.kv_bytes_per_cell)
        if rest or not origin <= start <= n <= origin + n_held:
            raise UmaError(
                ErrorCode.STATE_RESTORE_FAILED, f"{len(blob)} bytes do not hold positions {start}..{n} of this model"
            )
        target = Span(self.decoder.gate, seq_id, self.n_ctx_seq)
        return Move(Span(None, origin, n_held, blob), target, start, n, (self.decoder, seq_id))

    # interrupts, memory, the end

    def abort(self) -> None:
        decoder = self.decoder
        if decoder is not None:
            decoder.abort_flag[0] = 1

    def memory(self) -> MemoryUse:
        n_kv = self._kv_bytes  # states of recurrent layers and windows too, rounded by llama.cpp
        if self._has_direct_kv:
            n_kv = (self.info.n_ctx + len(self.prefill_slots) * self.n_ctx_seq) * self.info.kv_bytes_per_cell
        return MemoryUse(self.info.weight_bytes + self.info.adapter_bytes, n_kv, self._compute_bytes)

    def trim(self) -> int:
        """Give pages of empty sequences, and of prefill slots without work, back to the system."""
        if not self._has_direct_kv or self.decoder is None:
            return 0
        for slot in self.prefill_slots:
            if slot.is_free:
                slot.drop()
                lib.uma_kv_release_pages(slot.gate)
        empty = [seq_id for seq_id in range(self.info.n_seq_max) if not self.kv_len(seq_id)]
        return sum(release_stream(self.decoder.gate, seq_id) for seq_id in empty)

    def slot_warnings(self) -> int:
        return refusals.n

    def fake_context(self, seq_id: SeqId, n: int) -> None:
        assert self.decoder is not None
        size = min(self.info.n_batch, MARK_TOKENS_MAX)
        for p0 in range(0, n, size):
            lib.uma_kv_mark(self.decoder.handle, self.decoder.gate, seq_id, p0, min(size, n - p0))
        if self._has_direct_kv:  # otherwise the cells were cleared at load, one by one
            touch_stream(self.decoder.gate, seq_id, n)

    def close(self) -> None:
        self._close_prefill_slots()
        if self.decoder is not None:
            self.decoder.close()
            self.decoder = None
        self.model.close()


def _n_drafts(batch: Batch) -> dict[SeqId, int]:
    """Count, for each sequence of a batch, its rows after the first one."""
    sequences, counts = np.unique(batch.seq_id[: batch.n], return_counts=True)
    return dict(zip(sequences.tolist(), (counts - 1).tolist(), strict=True))


NO_COPIES = "its KV cannot be copied: a chat can continue only in its own sequence, and there are no snapshots of it"


def _expert_bytes(path: str) -> int:
    with closing(Header(path)) as header:
        return header.expert_bytes


def _bytes_per_cell(gate: Any) -> int:
    """Count the bytes of K and V for one position. Recurrent layers have none; windows count as if they held every
    position.
    """
    keys, values = (
        [int(each.nb[1]) if each else 0 for each in tensors[0 : gate.n_layer]] for tensors in (gate.k, gate.v)
    )
    if gate.is_foreign:  # V is transposed, and so was not found
        values = [value or key for key, value in zip(keys, values, strict=True)]
    return sum(keys) + sum(values)
