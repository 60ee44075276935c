"""EncoderEngine: models that compute vectors or scores, never text (BERT-like encoders, rerankers), through llama.h.

Inputs are computed whole, several in one call, and llama.cpp pools them. The call pauses between pieces of its graph
like a prompt's chunk (native/llama/prefill.c), so cancels and commands never wait for its end; only the next call does.
No KV outlives a call: sequences only distinguish the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from uma_core.config.options import EngineOptions
from uma_core.engine.api import (
    NO_PAGES,
    POOLINGS,
    Batch,
    Capabilities,
    DecodeOutcome,
    DecodeStatus,
    EmbeddingInfo,
    EngineInfo,
    Export,
    MemoryUse,
    PrefillOutcome,
    PrefillStatus,
    Progress,
    Rows,
    Sampler,
    Transfer,
)
from uma_core.engine.base import EngineBase
from uma_core.engine.devices import backend_name, device_names
from uma_core.engine.header import Header
from uma_core.engine.kernels import isa_notes, use_kernels
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.estimate import context_bytes
from uma_core.engine.llama.log import tap
from uma_core.engine.llama.model import LlamaModel, new_context
from uma_core.engine.llama.params import check_threads, encoder_params, encoder_shape, n_threads_of
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import AdapterSet, SamplingParams, SeqId, TokenId

RANK = "rank"
DEFAULT_POOLING = "mean"  # for encoders whose file names none
N_CONTEXTS = 2  # contexts that are kept: for the file's pooling, and for the last other pooling that was asked for
POOLING_TYPES = {name: f"LLAMA_POOLING_TYPE_{name.upper()}" for name in POOLINGS}


# llama.cpp gives these architectures no KV memory (llama_model::create_memory), or one that their graph does not use
# (llama-embed), whatever `attention.causal` in the file is. EmbeddingGemma's file has no such key.
NO_MEMORY = frozenset({
    "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "modern-bert",
    "gemma-embedding", "llama-embed", "wavtokenizer-dec", "dream", "llada", "llada-moe", "rnd1",
})  # fmt: skip
# this layer turns hidden states into vectors (LFM2-ColBERT), and only llama.cpp's own calls apply it
DENSE = "dense_2.weight"


def is_encoder(header: Header) -> bool:
    """Whether the model cannot continue a text: it sees the tokens after a token, ranks, or only computes vectors.

    Raises: MODEL_LOAD_FAILED for files that would end the process: this is the first look at every model.
    """
    header.check_computable()
    meta = header.of_arch()
    sees_all = header.arch in NO_MEMORY or meta.get("attention.causal") is False
    return sees_all or DENSE in header.tensors or meta.get("pooling_type") == int(lib.LLAMA_POOLING_TYPE_RANK)


class Encoder:
    """A llama_context for one kind of pooling, and the one call that it may have in progress."""

    def __init__(self, model: LlamaModel, params: Any, pooling: str, interrupt_flag: Any) -> None:
        """Raises: INSUFFICIENT_MEMORY."""
        self.handle: Any = None
        self.is_broken = False  # if True, it must be neither used nor freed
        self.pooling = pooling
        self.native = lib.uma_prefill_new(params.n_batch)
        if not self.native:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for an encoder's call")
        mark = tap.pump()
        params.pooling_type = getattr(lib, POOLING_TYPES[pooling])
        params.cb_eval = ffi.addressof(lib, "uma_prefill_cb")
        params.cb_eval_user_data = self.native
        try:
            with tap.quiet():  # it warns of poolings that the file does not name, and of calls longer than an input
                self.handle = new_context(model, params, "encoder")
        except UmaError:
            lib.uma_prefill_free(self.native)
            raise
        lib.uma_prefill_bind(self.native, self.handle, interrupt_flag)
        self._memory = lib.llama_get_memory(self.handle)
        n_out = int(lib.llama_model_n_embd_out(model.handle))
        self._n_out = int(lib.llama_model_n_cls_out(model.handle)) if pooling == RANK else n_out
        # llama.cpp reserves a row of logits for each token, although there are no logits
        self.n_bytes = context_bytes(mark) + params.n_batch * (model.n_vocab + n_out) * 4
        self._sizes: list[int] = []
        self._run = ffi.new("uma_run *")

    def start(self, inputs: Sequence[np.ndarray]) -> None:
        """Begin a call for no more tokens than the context's batch has."""
        self._sizes = [len(tokens) for tokens in inputs]
        token = np.concatenate(inputs).astype(np.int32)
        pos = np.concatenate([np.arange(n, dtype=np.int32) for n in self._sizes])
        seq = np.repeat(np.arange(len(inputs), dtype=np.int32), self._sizes)
        views = [ffi.from_buffer("int32_t *", array) for array in (token, pos, seq)]
        lib.uma_prefill_start_rows(self.native, *views, len(token))

    def run(self, until_ns: int, quantum_ns: int, min_pieces: int) -> PrefillOutcome:
        run = self._run
        if self.is_broken:
            return PrefillOutcome(PrefillStatus.FAILED, 0, 0.0, 0, 0)
        lib.uma_prefill_run(self.native, until_ns, max(1, quantum_ns), min_pieces, run)
        status = PrefillStatus.PAUSED
        if run.is_done:
            status = PrefillStatus.DONE if run.rc == 0 else PrefillStatus.FAILED
            self.is_broken = run.rc == lib.UMA_BROKEN
        return PrefillOutcome(status, run.n_pieces, run.fraction, run.elapsed_ns, run.longest_ns)

    def result(self) -> list[np.ndarray]:
        """For each input (1, n_out), or (tokens, n_out) without pooling: float32. The caller owns the arrays."""
        if self.pooling != "none":
            return [self._rows(lib.llama_get_embeddings_seq(self.handle, i), 1) for i in range(len(self._sizes))]
        rows = self._rows(lib.llama_get_embeddings(self.handle), sum(self._sizes))
        return np.split(rows, np.cumsum(self._sizes)[:-1])

    def _rows(self, pointer: Any, n: int) -> np.ndarray:
        if not pointer:
            raise UmaError(ErrorCode.DECODE_FAILED, "the model returned no vector")
        rows: np.ndarray = (
            np.frombuffer(ffi.buffer(pointer, 4 * n * self._n_out), np.float32).reshape(n, self._n_out).copy()
        )
        return rows

    def end(self) -> None:
        """Cancel the call in progress, and empty the KV memory that causal models have."""
        if self._sizes and not self.is_broken:
            lib.uma_prefill_cancel(self.native)
            if self._memory:
                lib.llama_memory_clear(self._memory, False)
        self._sizes = []

    def close(self) -> None:
        if self.handle and not self.is_broken:
            self.end()
            lib.llama_free(self.handle)
            lib.uma_prefill_free(self.native)
        self.handle = None


class EncoderEngine(EngineBase):
    """See engine.api.Engine for every method's contract. `options` is the `engine` section of the configuration."""

    def __init__(self, path: str, options: EngineOptions, progress: Progress | None = None) -> None:
        self._interrupt_flag = ffi.new("int32_t *")
        self._options = options
        if options.lora:
            raise UmaError(
                ErrorCode.CONFIG_INVALID,
                "engine.lora: encoders and rerankers are served without adapters",
                option="engine.lora",
            )
        kernels = use_kernels(options.cpu_kernels, options.isa)
        self.model = LlamaModel(path, options, progress)
        self._encoders: list[Encoder] = []  # the default one first, then the one used last
        self._busy: tuple[SeqId, Encoder] | None = None
        try:
            check_threads(n_threads_of(options))
            self.info = self._describe(kernels)
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def _warm_up(self) -> None:
        """Compute once, so that the first request does not pay for page faults and thread start, and pieces are timed.

        Raises: MODEL_LOAD_FAILED.
        """
        tokens = np.zeros(min(16, self.info.n_ctx_seq), np.int32)  # the model may have no more positions
        for _ in range(2):
            self.encode_open(0, [tokens], self._default_pooling)
            outcome = self.prefill_run(0, 2**62, 1, 1 << 30)
            self.prefill_close(0)
            if outcome.status is not PrefillStatus.DONE:
                raise UmaError(ErrorCode.MODEL_LOAD_FAILED, "the first call of the encoder failed")

    @property
    def _default_pooling(self) -> str:
        return self.model.pooling or DEFAULT_POOLING

    def _describe(self, kernels: str) -> EngineInfo:
        model, options = self.model, self._options
        n_ctx_train = int(lib.llama_model_n_ctx_train(model.handle))
        if n_ctx_train < 1:  # llama.cpp keeps it in 32 bits, and returns it with a sign
            message = f"{model.path}: its context_length is too large"
            raise UmaError(ErrorCode.MODEL_LOAD_FAILED, message, path=model.path)
        n_input, n_batch, n_inputs = encoder_shape(options, n_ctx_train, model.n_vocab)
        can_rank = self._default_pooling == RANK
        return EngineInfo(
            engine="encoder",
            model_name=model.name,
            model_path=model.path,
            fingerprint=model.fingerprint,
            arch=model.arch,
            backend=backend_name(),
            devices=device_names(),
            n_vocab=model.n_vocab,
            n_layer=int(lib.llama_model_n_layer(model.handle)),
            n_ctx_train=n_ctx_train,
            n_ctx=n_input * options.n_seq,
            n_ctx_seq=n_input,
            n_seq_max=options.n_seq,
            n_batch=n_batch,
            n_ubatch=n_batch,
            n_threads=n_threads_of(options),
            is_unified=False,
            kv_type=options.kv_type,
            kv_bytes_per_cell=0,
            weight_bytes=int(lib.llama_model_size(model.handle)),
            capabilities=Capabilities(1, True, False, False),
            embedding=EmbeddingInfo(
                n_embd=int(lib.llama_model_n_embd_out(model.handle)),
                pooling=self._default_pooling,
                poolings=POOLINGS if can_rank else tuple(name for name in POOLINGS if name != RANK),
                n_input=n_input,
                is_whole=True,
                n_inputs=n_inputs,
                n_scores=int(lib.llama_model_n_cls_out(model.handle)),
            ),
            can_generate=False,
            kernels=kernels,
            notes=isa_notes(options.isa, kernels),
        )

    # encode

    def _encoder(self, pooling: str) -> Encoder:
        """Raises: INSUFFICIENT_MEMORY."""
        found = next((encoder for encoder in self._encoders if encoder.pooling == pooling), None)
        if found is None:
            while len(self._encoders) >= N_CONTEXTS:
                self._encoders.pop().close()
            params = encoder_params(self._options, self.info.n_ctx_train, self.model.n_vocab)
            found = Encoder(self.model, params, pooling, self._interrupt_flag)
            self._encoders.append(found)
        return found

    def encode_open(self, seq_id: SeqId, inputs: Sequence[np.ndarray], pooling: str) -> bool:
        if self._busy is not None:
            return False
        n_tokens = sum(len(tokens) for tokens in inputs)
        info = self.info.embedding
        assert info is not None
        if (
            not 0 < len(inputs) <= info.n_inputs
            or not 0 < n_tokens <= self.info.n_ubatch
            or pooling not in info.poolings
        ):
            raise UmaError(
                ErrorCode.BAD_BATCH,
                f"{len(inputs)} inputs with {n_tokens} tokens do not fit a call of pooling {pooling}",
            )
        encoder = self._encoder(pooling)
        if encoder.is_broken:
            raise UmaError(ErrorCode.DECODE_FAILED, "memory ran out while an input was computed; reload the model")
        encoder.start(inputs)
        self._busy = seq_id, encoder
        return True

    def _of(self, seq_id: SeqId) -> Encoder:
        assert self._busy is not None and self._busy[0] == seq_id, "no call is in progress for this sequence"
        return self._busy[1]

    def prefill_run(self, seq_id: SeqId, until_ns: int, quantum_ns: int, min_pieces: int) -> PrefillOutcome:
        return self._of(seq_id).run(until_ns, quantum_ns, min_pieces)

    def encode_result(self, seq_id: SeqId) -> list[np.ndarray]:
        return self._of(seq_id).result()

    def prefill_close(self, seq_id: SeqId) -> None:
        if self._busy is not None and self._busy[0] == seq_id:
            self._busy[1].end()
            self._busy = None

    # methods for what encoders cannot do

    def _refuse(self) -> NoReturn:
        raise UmaError(ErrorCode.UNSUPPORTED, "this model computes vectors or scores, not text")

    def prepare(self, params: SamplingParams) -> None:
        """Do nothing: encoders sample no tokens."""

    def decode(self, batch: Batch, samplers: Sequence[Sampler | None]) -> DecodeOutcome:
        return DecodeOutcome(DecodeStatus.BAD_BATCH, [], 0, 0)

    def set_adapters(self, seq_id: SeqId, adapters: AdapterSet) -> None:
        """Do nothing: encoders have no adapters."""

    def draw(self, row: int, sampler: Sampler | None) -> TokenId:
        self._refuse()

    def begin_next(self, wake_fd: int) -> None:
        """Do nothing: there are no decode calls."""

    def sync(self) -> None:
        """Do nothing: no call is started ahead."""

    def logits(self, row: int) -> np.ndarray:
        self._refuse()

    def hidden(self) -> np.ndarray:
        self._refuse()

    def prefill_open(self, seq_id: SeqId, tokens: np.ndarray, want_logits: bool, hidden: Rows | None = None) -> bool:
        self._refuse()

    def prefill_sample(self, seq_id: SeqId, sampler: Sampler | None) -> TokenId:
        self._refuse()

    def prefill_logits(self, seq_id: SeqId) -> np.ndarray:
        self._refuse()

    def prefill_hidden(self, seq_id: SeqId) -> np.ndarray:
        self._refuse()

    def publish_kv(self, seq_id: SeqId) -> Transfer:
        self._refuse()

    def copy_prefix(self, src: SeqId, dst: SeqId, n: int, start: int = 0) -> Transfer:
        self._refuse()

    def export_state(self, seq_id: SeqId, n: int, start: int = 0) -> Export:
        self._refuse()

    def import_state(
        self, seq_id: SeqId, blob: bytes | bytearray | memoryview, n: int, start: int = 0, origin: int = 0
    ) -> Transfer:
        self._refuse()

    # KV memory: there is none

    def kv_len(self, seq_id: SeqId) -> int:
        return 0

    def kv_pages(self, seq_id: SeqId, n: int) -> np.ndarray:
        return NO_PAGES

    def kv_truncate(self, seq_id: SeqId, n: int) -> bool:
        return True

    def fake_context(self, seq_id: SeqId, n: int) -> None:
        """Do nothing: there is no KV."""

    # interrupts, memory, the end

    def abort(self) -> None:
        """Do nothing: `interrupt` ends its calls between two pieces."""

    def memory(self) -> MemoryUse:
        return MemoryUse(self.info.weight_bytes, 0, sum(encoder.n_bytes for encoder in self._encoders))

    def trim(self) -> int:
        return 0

    def slot_warnings(self) -> int:
        return 0

    def close(self) -> None:
        for encoder in self._encoders:
            encoder.close()
        self._encoders.clear()
        self._busy = None
        self.model.close()
