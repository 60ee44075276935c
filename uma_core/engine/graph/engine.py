"""GraphEngine: the Engine contract over our own graph. It connects weights, pages, decoder and prefill slots.

All sequences' KV is in one arena of pages. A prompt's chunk is written into the sequence's own pages while it is
computed; publishing it only makes it count. The vocabulary, the chat template and the samplers are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from uma_core.config.options import EngineOptions
from uma_core.engine.ahead import Ahead, pays
from uma_core.engine.api import (
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
from uma_core.engine.graph.decoder import Decoder
from uma_core.engine.graph.forward import Compute
from uma_core.engine.graph.load import Loaded, Wish, load
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.prefill import PrefillSlot
from uma_core.engine.graph.store import PAGE
from uma_core.engine.graph.ticks import tick_shapes
from uma_core.engine.graph.transfers import (
    HostExport,
    SharedState,
    StateExport,
    StateImport,
    Steps,
    blob_bytes,
    import_moves,
    split_blob,
)
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.params import check_threads, n_outputs
from uma_core.engine.refusals import refusals
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import AdapterSet, SeqId

WARM_UP_TOKENS = 64  # tokens of a chunk: a row takes as long in larger chunks


class GraphEngine(GeneratorBase[PrefillSlot]):
    """See engine.api.Engine for every method's contract. `options` is the `engine` section of the configuration."""

    def __init__(
        self, path: str, options: EngineOptions, progress: Progress | None = None, is_stock: bool = False
    ) -> None:
        """`is_stock`: compute on the CPU as on a GPU, with ggml's own operations and memory apart from the host's."""
        self._interrupt_flag = ffi.new("int32_t *")
        self._abort_flag = ffi.new("int32_t *")
        loaded = load(path, options, Wish(progress, is_stock))
        self._loaded: Loaded | None = loaded
        self.model = loaded.vocab
        self.decoder: Decoder | None = None
        self.prefill_slots: list[PrefillSlot] = []
        self._backends: list[Any] = []
        self._broken: list[str] = []  # why the backends must neither compute nor be freed
        try:
            self._open(loaded, options)
        except BaseException:
            self.close()
            raise

    def _open(self, loaded: Loaded, options: EngineOptions) -> None:
        decode_backend, prefill_backend = self._new_backend(loaded), self._new_backend(loaded)
        if loaded.device.is_cpu:
            lib.ggml_backend_cpu_set_abort_callback(
                decode_backend, ffi.addressof(lib, "uma_abort_cb"), self._abort_flag
            )
        ahead = Ahead(options.n_batch if self._computes_ahead(loaded, options) else 0, self._interrupt_flag)
        decoding = Compute(decode_backend, loaded.attention(options.n_batch), self._broken)
        self.decoder = Decoder(loaded.network, loaded.pages, decoding, options.n_batch, ahead)
        for _ in range(loaded.n_prefill_slots):
            reading = Compute(prefill_backend, loaded.attention(options.n_ubatch), self._broken)
            self.prefill_slots.append(
                PrefillSlot(
                    loaded.network,
                    loaded.pages,
                    reading,
                    self._interrupt_flag,
                    min(loaded.n_ubatch, loaded.pages.n_ctx_seq),
                )
            )
        check_threads(loaded.n_threads)
        missing = loaded.promise_missing()
        if options.deterministic and missing:
            raise UmaError(
                ErrorCode.CONFIG_INVALID,
                f"engine.deterministic needs {missing}",
                option="engine.deterministic",
                missing=missing,
            )
        self._warm_up(tick_shapes(options.n_seq, loaded.ride_rows, loaded.n_verify))
        self.info = self._describe(loaded, options)

    @staticmethod
    def _computes_ahead(loaded: Loaded, options: EngineOptions) -> bool:
        return loaded.device.is_stock and pays(options.decode_ahead, not loaded.device.is_cpu)

    def _new_backend(self, loaded: Loaded) -> Any:
        self._backends.append(loaded.device.new_backend(loaded.n_threads))
        return self._backends[-1]

    def _warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Compute once at load: first calls pay for page faults and thread start, and pieces are then predicted from
        measurements as of the first prompt.
        """
        batch = Batch(1)
        batch.add(0, 0, 0, True)
        self.decode(batch, [None])
        self.kv_truncate(0, 0)
        assert self._loaded is not None and self.decoder is not None
        self.decoder.warm_up(shapes)  # no tick waits for its graph to be built
        n_most = min(self._loaded.n_ubatch, self._loaded.pages.n_ctx_seq)
        n = min(WARM_UP_TOKENS, n_most)
        for _ in self.prefill_slots:
            # each slot takes its memory now: on a GPU, a later allocation waits for all work in progress
            self.prefill_open(0, np.zeros(n_most, np.int32), True)
            self.prefill_close(0)
            for _ in range(2):
                self.prefill_open(0, np.zeros(n, np.int32), False)
                self.prefill_run(0, 2**62, 1, 0)
                self.prefill_close(0)
            self.prefill_slots.append(self.prefill_slots.pop(0))  # the next one

    def _describe(self, loaded: Loaded, options: EngineOptions) -> EngineInfo:
        vocab, shape, pages = loaded.vocab, loaded.network.shape, loaded.pages
        return EngineInfo(
            engine="graph",
            model_name=vocab.name,
            model_path=vocab.path,
            fingerprint=vocab.fingerprint,
            arch=shape.arch,
            backend=loaded.device.name,
            devices=(loaded.device.description,),
            n_vocab=shape.n_vocab,
            suppressed=vocab.suppressed,
            n_outputs=n_outputs(options),
            n_layer=shape.n_layer,
            n_ctx_train=shape.n_ctx_train,
            n_ctx=len(pages.n_refs) * PAGE,
            n_ctx_seq=pages.n_ctx_seq,
            n_seq_max=options.n_seq,
            n_batch=options.n_batch,
            n_ubatch=loaded.n_ubatch,
            n_threads=loaded.n_threads,
            is_unified=loaded.is_unified,
            kv_type=options.kv_type,
            kv_bytes_per_cell=pages.store.layout.position_bytes,
            kv_page=PAGE,
            weight_bytes=loaded.weights.n_bytes,
            n_expert=shape.n_expert,
            n_expert_used=shape.n_expert_used,
            expert_bytes=loaded.header.expert_bytes,
            capabilities=Capabilities(
                n_prefill_slots=len(self.prefill_slots),
                can_rollback=pages.states is None,
                can_copy_prefix=True,
                has_states=pages.states is not None,
                can_abort=loaded.device.is_cpu,
                can_mix_rows=True,
                n_verify_rows=loaded.n_verify,
                ride_rows=loaded.ride_rows,
                keeps_hidden=bool(loaded.network.hidden_layers),
                computes_ahead=self._computes_ahead(loaded, options),
            ),
            adapters=loaded.network.adapters.infos,
            embedding=EmbeddingInfo(
                n_embd=shape.n_embd,
                pooling=vocab.pooling or DEFAULT_POOLING,
                poolings=tuple(ROWS_OF),
                n_input=pages.n_ctx_seq,
                n_rows=min(loaded.n_ubatch, pages.n_ctx_seq),
            ),
            kernels=loaded.kernels,
            kv_facts=(loaded.kernels, shape.n_expert_used, int(pages.n_ctx_seq > shape.scaling.n_ctx_orig)),
            is_deterministic=not loaded.promise_missing(),
            weights_from=loaded.weights.source,
            notes=loaded.notes,
        )

    def repacked_memory(self) -> memoryview | None:
        """The memory that products read, if weights are repacked, until `close`."""
        return self._loaded.weights.repacked() if self._loaded is not None else None

    # decode

    def set_adapters(self, seq_id: SeqId, adapters: AdapterSet) -> None:
        assert self._loaded is not None and self.decoder is not None
        self.decoder.scales[seq_id] = self._loaded.network.adapters.scales(adapters)

    def decode(self, batch: Batch, samplers: Sequence[Sampler | None]) -> DecodeOutcome:
        assert self.decoder is not None
        reading = {slot.seq_id for slot in self.prefill_slots if not slot.is_free}
        outcome = self.decoder.decode(batch, samplers, reading)
        if outcome.status is DecodeStatus.ABORTED:
            self._abort_flag[0] = 0  # an abort stops one call only
        return outcome

    def begin_next(self, wake_fd: int) -> None:
        assert self.decoder is not None
        self.decoder.begin_next(wake_fd)

    def sync(self) -> None:
        assert self.decoder is not None
        self.decoder.sync()

    # resumable prefill

    def prefill_open(self, seq_id: SeqId, tokens: np.ndarray, want_logits: bool, hidden: Rows | None = None) -> bool:
        assert self._loaded is not None
        self.sync()
        pages = self._loaded.pages
        assert self.decoder is not None
        scales = self.decoder.scales[seq_id]
        free = sorted(
            [slot for slot in self.prefill_slots if slot.is_free],
            key=lambda slot: slot.adapters != tuple(sorted(scales)),
        )
        slot = self._slot(seq_id) or next(iter(free), None)
        if slot is None:
            return False
        n_kv = self.kv_len(seq_id) if slot.is_free else slot.n_kv
        n = len(tokens)
        is_fit = 0 < n <= self._loaded.n_ubatch and n_kv + n <= pages.n_ctx_seq
        if slot.n_chunk or not is_fit or tokens.min() < 0 or tokens.max() >= self._loaded.network.shape.n_vocab:
            raise UmaError(ErrorCode.BAD_BATCH, "a chunk is in progress, or it does not fit")
        if not pages.has_room([(seq_id, n_kv, n)]):
            refusals.add()
            raise UmaError(ErrorCode.KV_FULL, "no free pages for a chunk of a prompt")
        if slot.is_free:
            slot.take(seq_id, n_kv, scales)
        pages.reserve(seq_id, n_kv, n)
        try:
            slot.start(tokens, want_logits, hidden)
        except UmaError:
            self.prefill_close(seq_id)
            raise
        return True

    def publish_kv(self, seq_id: SeqId) -> Transfer:
        slot = self._busy_slot(seq_id)

        def finish() -> None:
            self._count(seq_id, slot.n_kv)
            slot.publish()

        return Steps(0, (0, 0), lambda p0, p1: None, finish)

    def prefill_close(self, seq_id: SeqId) -> None:
        slot = self._slot(seq_id)
        if slot is not None:
            slot.drop()
            self._pages.truncate(seq_id, self.kv_len(seq_id))

    # KV memory

    @property
    def _pages(self) -> Pages:
        assert self._loaded is not None
        return self._loaded.pages

    def kv_len(self, seq_id: SeqId) -> int:
        assert self.decoder is not None
        return self.decoder.n_kv[seq_id]

    def kv_pages(self, seq_id: SeqId, n: int) -> np.ndarray:
        pages = self._pages
        return np.array(pages.table[seq_id, : min(-(-n // PAGE), pages.n_pages(seq_id))])

    def kv_truncate(self, seq_id: SeqId, n: int) -> bool:
        assert self.decoder is not None
        self.sync()
        states = self._pages.states
        if n < self.kv_len(seq_id):
            self.prefill_close(seq_id)
            if states is not None:
                if states.resumable(seq_id, n, self.kv_len(seq_id)) != n:
                    return False
                states.put(seq_id, states.hold(states.at(seq_id, n, self.kv_len(seq_id))))
            self.decoder.n_kv[seq_id] = n
            self._pages.truncate(seq_id, n)
        return True

    def resumable(self, seq_id: SeqId, n: int) -> int:
        states, n_kv = self._pages.states, self.kv_len(seq_id)
        return min(n, n_kv) if states is None else states.resumable(seq_id, n, n_kv)

    def keep_states(self, seq_id: SeqId, positions: Sequence[int]) -> None:
        if self._pages.states is not None:
            self._pages.states.want(seq_id, positions)

    def state_bytes(self, seq_id: SeqId, n: int) -> int:
        states = self._pages.states
        return 0 if states is None else blob_bytes(states, self.resumable(seq_id, n) == n)

    def _append(self, seq_id: SeqId, start: int, n: int) -> None:
        """Make positions start..n writable. Raises: KV_FULL."""
        self.sync()
        if self._slot(seq_id) or self.kv_len(seq_id) != start:
            raise UmaError(ErrorCode.BAD_BATCH, f"sequence {seq_id} does not end at position {start}")
        if not self._pages.has_room([(seq_id, start, n - start)]):
            refusals.add()
            raise UmaError(ErrorCode.KV_FULL, "no free pages to move KV into")
        self._pages.reserve(seq_id, start, n - start)

    def _count(self, seq_id: SeqId, n: int) -> None:
        assert self.decoder is not None
        self.decoder.n_kv[seq_id] = n

    def _release(self, seq_id: SeqId) -> None:
        """Give back the pages of positions that were never counted."""
        if self.decoder is not None:
            self._pages.truncate(seq_id, self.kv_len(seq_id))

    def copy_prefix(self, src: SeqId, dst: SeqId, n: int, start: int = 0) -> Transfer:
        """Share whole pages without a copy; only positions before the first whole page are copied."""
        pages = self._pages
        first = -(-start // PAGE)
        own_end = min(n, first * PAGE)
        states, n_kv = pages.states, self.kv_len(src)
        if n > n_kv or (states is not None and states.resumable(src, n, n_kv) != n):
            raise UmaError(ErrorCode.BAD_BATCH, f"sequence {src} has no position {n}, or no state at it")
        self._append(dst, start, own_end)

        def move(p0: int, p1: int) -> None:
            own, new = (int(pages.table[seq, p0 // PAGE]) for seq in (src, dst))
            pages.store.copy(own, new, p0 % PAGE, p0 % PAGE + p1 - p0)

        def finish() -> None:
            self.sync()  # it writes into a page that is shared from now on
            if n > own_end:
                pages.share(src, dst, first, n)
            self._count(dst, n)

        n_bytes = (own_end - start) * pages.store.layout.position_bytes
        steps = Steps(n_bytes, (start, own_end), move, finish, lambda: self._release(dst))
        return steps if states is None else SharedState(states, (src, dst, n), n_kv, steps)

    def export_state(self, seq_id: SeqId, n: int, start: int = 0) -> Export:
        if self._pages.states is not None:
            return StateExport(self._pages, seq_id, (start, n), self.kv_len(seq_id))
        return HostExport(self._pages, seq_id, start, n)

    def import_state(
        self, seq_id: SeqId, blob: bytes | bytearray | memoryview, n: int, start: int = 0, origin: int = 0
    ) -> Transfer:
        states, n_bytes, state = self._pages.states, len(blob), None
        if states is not None:
            n_bytes, state = split_blob(states, blob)
        n_held, rest = divmod(n_bytes, self._pages.store.layout.position_bytes)
        if rest or not origin <= start <= n <= origin + n_held:
            raise UmaError(
                ErrorCode.STATE_RESTORE_FAILED, f"{len(blob)} bytes do not hold positions {start}..{n} of this model"
            )
        self._append(seq_id, start, n)
        move = import_moves(self._pages, seq_id, memoryview(blob)[:n_bytes], origin)
        steps = Steps(
            (n - start) * self._pages.store.layout.position_bytes,
            (start, n),
            move,
            lambda: self._count(seq_id, n),
            lambda: self._release(seq_id),
        )
        if states is None:
            return steps
        return StateImport(states, seq_id, state if n == origin + n_held else None, steps)

    # interrupts, memory, the end

    def abort(self) -> None:
        self._abort_flag[0] = 1

    def memory(self) -> MemoryUse:
        decoder = self.decoder
        if decoder is None:
            return MemoryUse(0, 0, 0)
        n_compute = decoder.forwards.n_bytes + sum(slot.n_bytes for slot in self.prefill_slots)
        return MemoryUse(self.info.weight_bytes + self.info.adapter_bytes, self._pages.n_bytes, n_compute)

    def trim(self) -> int:
        self.sync()
        return self._pages.trim()

    def slot_warnings(self) -> int:
        return refusals.n

    def fake_context(self, seq_id: SeqId, n: int) -> None:
        self._append(seq_id, 0, n)
        self._pages.touch(seq_id)
        self._count(seq_id, n)

    def close(self) -> None:
        for slot in self.prefill_slots:
            slot.close()
        self.prefill_slots.clear()
        if self.decoder is not None:
            self.decoder.close()
            self.decoder = None
        for backend in () if self._broken else self._backends:
            lib.ggml_backend_free(backend)
        self._backends.clear()
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None
