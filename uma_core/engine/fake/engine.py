"""FakeEngine: a complete engine without a model. Deterministic tokens, programmable time and failures.

Rules: the next token is a hash of the sequence's content, so that any mistake in positions, copies or restores changes
the text. Time passes on the clock it is given: it advances a ManualClock (simulation, tests), and waits on any other
(daemon tests). Failures are injected through `faults`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from uma_core.clock import Clock, ManualClock
from uma_core.engine.api import (
    NO_PAGES,
    NOT_DRAWN,
    ROWS_OF,
    WANT_IF_ACCEPTED,
    WANT_TOKEN,
    Adapter,
    Batch,
    Capabilities,
    DecodeOutcome,
    DecodeStatus,
    EmbeddingInfo,
    EngineInfo,
    MemoryUse,
    ModelFacts,
    PrefillOutcome,
    PrefillStatus,
    Rows,
    Sampler,
)
from uma_core.engine.fake.cost import INSTANT, FakeCost
from uma_core.engine.fake.kv import FakeExport, FakeKV, FakeTransfer, blob_of, entry_of, tokens_of_blob
from uma_core.engine.fake.text import (
    BOS,
    CONTROL,
    EOG,
    N_VOCAB,
    TEMPLATE,
    FakeSampler,
    encode,
    next_token,
    piece_of,
    row_logits,
)
from uma_core.engine.refusals import refusals
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import AdapterSet, SamplingParams, SeqId, TokenId
from uma_core.waking import wake

N_EMBD = 8  # numbers of a vector
N_VERIFY_ROWS = 16  # as the graph engine's


@dataclass
class Faults:
    """Faults to inject. Counters and queues are used up as faults strike."""

    statuses: deque[DecodeStatus] = field(default_factory=deque)  # statuses of the next decode calls
    n_full: int = 0  # this many decode calls find no cells
    full_above: int = 0  # calls with more tokens than this find no cells; 0: off
    nan_rows: set[int] = field(default_factory=set)  # rows of the next decode call whose logits are not finite
    is_hanging: bool = False  # decode blocks until `release`
    prefill_failures: int = 0  # this many prefill runs lose their chunk
    restore_failures: int = 0  # this many imports refuse their blob
    refuse_memory: bool = False  # construction fails
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let a hanging decode call continue."""
        self.is_hanging = False
        self.released.set()


Jitter = Callable[[float], float]


@dataclass(frozen=True)
class FakeModel:
    """Shape of the simulated model and of its KV memory."""

    n_seq_max: int = 4
    n_ctx: int = 16384
    n_batch: int = 2048
    n_ubatch: int = 512
    n_prefill_slots: int = 2
    is_unified: bool = False
    kv_bytes_per_cell: int = 12288
    weight_bytes: int = 529_000_000
    n_expert: int = 0
    n_expert_used: int = 0
    expert_bytes: int = 0
    can_rollback: bool = True
    ride_rows: tuple[int, ...] = ()
    computes_ahead: bool = False
    eog_every: int = 0  # about one in this many tokens ends the text; 0: never
    # LoRA adapters, each with texts of its own, and their scales for requests that name none
    adapters: AdapterSet = ()
    can_mix_adapters: bool = True


class _Chunk:
    """A prompt chunk in a slot."""

    __slots__ = ("done_ns", "hidden", "is_done", "tokens", "total_ns", "want_logits")

    def __init__(self, tokens: list[int], want_logits: bool, total_ns: float, hidden: Rows) -> None:
        self.tokens = tokens
        self.want_logits = want_logits
        self.hidden = hidden
        self.total_ns = max(1.0, total_ns)
        self.done_ns = 0.0
        self.is_done = False


class FakeEngine:
    """Implements `engine.api.Engine`. Borrows the clock."""

    def __init__(
        self,
        model: FakeModel = FakeModel(),
        cost: FakeCost = INSTANT,
        clock: Clock | None = None,
        faults: Faults | None = None,
        jitter: Jitter | None = None,
    ) -> None:
        """Raises UmaError(INSUFFICIENT_MEMORY) if the faults say so."""
        self.faults = faults or Faults()
        if self.faults.refuse_memory:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "the fake engine was told to find no memory")
        self.model = model
        self.cost = cost
        self.clock: Clock = clock if clock is not None else ManualClock()
        self.info = _info(model)
        self._kv = FakeKV(model.n_seq_max, model.n_ctx, self.info.n_ctx_seq, model.is_unified)
        self._chunks: dict[SeqId, _Chunk] = {}
        self._jitter: Jitter = jitter or (lambda ns: ns)
        self._rows: list[int] = []
        self._adapters: dict[SeqId, AdapterSet] = {}
        self._rung = threading.Event()
        self._aborted = threading.Event()
        self.is_closed = False

    # text
    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[TokenId]:
        return encode(text, add_special, parse_special)

    @property
    def n_vocab(self) -> int:
        return N_VOCAB

    def piece(self, token: TokenId, unparse_special: bool = False) -> bytes:
        return piece_of(token) or (CONTROL.get(token, b"") if unparse_special else b"")

    def is_eog(self, token: TokenId) -> bool:
        return token == EOG

    def is_control(self, token: TokenId) -> bool:
        return token in CONTROL

    def chat_template(self) -> str | None:
        return TEMPLATE

    def special(self, name: str) -> str:
        return {"bos": "<bos>", "eos": "<eog>"}[name]

    def facts(self) -> ModelFacts:
        special = {"bos": (BOS, "<bos>"), "eos": (EOG, "<eog>")}
        return ModelFacts(TEMPLATE, None, special, True, False, self.model.weight_bytes // 2, 0, "fake", "fake")

    # decode
    def set_adapters(self, seq_id: SeqId, adapters: AdapterSet) -> None:
        self._adapters[seq_id] = adapters

    def _entry(self, seq_id: SeqId, token: TokenId) -> int:
        """The KV entry of the sequence for a token."""
        return entry_of(token, self._adapters.get(seq_id, ()))

    def sampler(self, params: SamplingParams, seed: int) -> FakeSampler:
        return FakeSampler(params, seed)

    def prepare(self, params: SamplingParams) -> None:
        """Do nothing: its samplers are made at once."""

    def decode(self, batch: Batch, samplers: Sequence[Sampler | None]) -> DecodeOutcome:
        wake(batch.wake_fd)
        start = self.clock.now_ns()
        runs = _runs(batch)
        status = self._refusal(batch, runs)
        if status is DecodeStatus.FULL:
            refusals.add()
        if status is DecodeStatus.OK:
            self.elapse(self._decode_time(runs))
            status = DecodeStatus.ABORTED if self._aborted.is_set() else status
            self._aborted.clear()
        if status is not DecodeStatus.OK:
            return DecodeOutcome(status, [], self.clock.now_ns() - start, 0)
        self._rows = []
        for seq, tokens, wants in runs:
            for token, want in zip(tokens, wants, strict=True):
                state = self._kv.append(seq, self._entry(seq, token))
                if want:
                    self._rows.append(state)
        if batch.want_hidden:
            return DecodeOutcome(DecodeStatus.OK, [], self.clock.now_ns() - start, 0)
        return DecodeOutcome(DecodeStatus.OK, self._draw_rows(batch, samplers), self.clock.now_ns() - start, 0)

    def _draw_rows(self, batch: Batch, samplers: Sequence[Sampler | None]) -> list[TokenId]:
        """Draw like native/llama/tick.c."""
        nan, self.faults.nan_rows = self.faults.nan_rows, set()
        out: list[TokenId] = []
        for i in np.flatnonzero(batch.want_logits[: batch.n]):
            row, want = len(out), batch.want_logits[i]
            if want == WANT_TOKEN or (want == WANT_IF_ACCEPTED and out[-1] == batch.tokens[i]):
                out.append(-1 if row in nan else self._sample(self._rows[row], samplers[row]))
            else:
                out.append(NOT_DRAWN)
        return out

    def draw(self, row: int, sampler: Sampler | None) -> TokenId:
        return self._sample(self._rows[row], sampler)

    def _refusal(self, batch: Batch, runs: list[tuple[int, list[int], list[int]]]) -> DecodeStatus:
        """Refuse for injected faults first, then for the reasons of a real engine."""
        faults = self.faults
        if faults.is_hanging and not self._hang():
            return DecodeStatus.ABORTED
        if faults.statuses:
            status = faults.statuses.popleft()
            if status is not DecodeStatus.OK:
                return status
        if faults.n_full > 0:
            faults.n_full -= 1
            return DecodeStatus.FULL
        if 0 < faults.full_above < batch.n:
            return DecodeStatus.FULL
        if batch.n == 0 or batch.n > self.model.n_batch or not self._is_continuous(batch, runs):
            return DecodeStatus.BAD_BATCH
        if not self.model.can_mix_adapters and len({self._adapters.get(seq, ()) for seq, _, _ in runs}) > 1:
            return DecodeStatus.BAD_BATCH
        return DecodeStatus.OK if self._kv.has_room({seq: len(t) for seq, t, _ in runs}) else DecodeStatus.FULL

    def _hang(self) -> bool:
        """Block until released (True) or aborted (False)."""
        while not self.faults.released.wait(0.002):
            if self._aborted.is_set():
                self._aborted.clear()
                return False
        self.faults.released.clear()
        return True

    def _is_continuous(self, batch: Batch, runs: list[tuple[int, list[int], list[int]]]) -> bool:
        at = 0
        for seq, tokens, _ in runs:
            if not 0 <= seq < self.model.n_seq_max or seq in self._chunks or batch.pos[at] != self._kv.n(seq):
                return False
            if any(batch.pos[at + i] != batch.pos[at] + i for i in range(len(tokens))):
                return False
            at += len(tokens)
        return len({seq for seq, _, _ in runs}) == len(runs)

    def _decode_time(self, runs: list[tuple[int, list[int], list[int]]]) -> float:
        """Time of all ubatches: with streams, only equal runs of consecutive ascending sequences share one."""
        rows = [(seq, len(tokens), self._kv.n(seq)) for seq, tokens, _ in runs]
        if self.model.is_unified:
            return self.cost.decode_ns([(k, kv) for _, k, kv in rows])
        total, group = 0.0, [rows[0]]
        for row in rows[1:]:
            if row[0] == group[-1][0] + 1 and row[1] == group[-1][1]:
                group.append(row)
                continue
            total += self.cost.decode_ns([(k, kv) for _, k, kv in group])
            group = [row]
        return total + self.cost.decode_ns([(k, kv) for _, k, kv in group])

    def _sample(self, state: int, sampler: Sampler | None) -> TokenId:
        token = next_token(state, self.model.eog_every)
        return sampler.choose(state, token) if isinstance(sampler, FakeSampler) else token

    def begin_next(self, wake_fd: int) -> None: ...
    def sync(self) -> None: ...
    def logits(self, row: int) -> np.ndarray:
        return row_logits(next_token(self._rows[row], self.model.eog_every))

    # resumable prefill
    def prefill_open(self, seq_id: SeqId, tokens: np.ndarray, want_logits: bool, hidden: Rows | None = None) -> bool:
        if seq_id in self._chunks:
            raise ValueError(f"sequence {seq_id} has a chunk in progress")
        if len(self._chunks) >= self.model.n_prefill_slots:
            return False
        if not 0 < len(tokens) <= self.model.n_ubatch:
            raise ValueError(f"chunk of {len(tokens)} tokens")
        total = self._jitter(self.cost.prefill_ns(len(tokens), self._kv.n(seq_id)))
        self._chunks[seq_id] = _Chunk([int(t) for t in tokens], want_logits, total, hidden or Rows.NONE)
        return True

    def prefill_run(self, seq_id: SeqId, until_ns: int, quantum_ns: int, min_pieces: int) -> PrefillOutcome:
        chunk = self._chunks[seq_id]
        start = self.clock.now_ns()
        n_pieces, longest = 0, 0
        piece = max(float(quantum_ns), self.cost.piece_ns(len(chunk.tokens), self._kv.n(seq_id)))
        if self.faults.prefill_failures > 0:
            self.faults.prefill_failures -= 1
            del self._chunks[seq_id]
            return PrefillOutcome(PrefillStatus.FAILED, 0, 0.0, 0, 0)
        while chunk.done_ns < chunk.total_ns:
            step = min(piece, chunk.total_ns - chunk.done_ns)
            before = self.clock.now_ns()
            if n_pieces >= max(1, min_pieces) and (self._rung.is_set() or before + step > until_ns):
                break
            self.elapse(step + self.cost.piece_overhead_ns)
            chunk.done_ns += step
            n_pieces += 1
            longest = max(longest, self.clock.now_ns() - before)
        chunk.is_done = chunk.done_ns >= chunk.total_ns
        status = PrefillStatus.DONE if chunk.is_done else PrefillStatus.PAUSED
        return PrefillOutcome(status, n_pieces, chunk.done_ns / chunk.total_ns, self.clock.now_ns() - start, longest)

    def prefill_sample(self, seq_id: SeqId, sampler: Sampler | None) -> TokenId:
        return self._sample(self._chunk_state(seq_id), sampler)

    def prefill_logits(self, seq_id: SeqId) -> np.ndarray:
        return row_logits(next_token(self._chunk_state(seq_id), self.model.eog_every))

    def prefill_hidden(self, seq_id: SeqId) -> np.ndarray:
        chunk = self._chunks[seq_id]
        ends = range(1, len(chunk.tokens) + 1)
        chosen = {Rows.NONE: [], Rows.LAST: ends[-1:], Rows.FIRST: ends[:1]}.get(chunk.hidden, ends)
        return _hidden_rows([self._kv.peek(seq_id, chunk.tokens[:n]) for n in chosen])

    def hidden(self) -> np.ndarray:
        return _hidden_rows(self._rows)

    def encode_open(self, seq_id: SeqId, inputs: Sequence[np.ndarray], pooling: str) -> bool:
        raise UmaError(ErrorCode.UNSUPPORTED, "this engine reads inputs chunk by chunk")

    def encode_result(self, seq_id: SeqId) -> list[np.ndarray]:
        return []

    def _chunk_state(self, seq_id: SeqId) -> int:
        chunk = self._chunks[seq_id]
        if not (chunk.is_done and chunk.want_logits):
            raise ValueError("the chunk has no logits")
        return self._kv.peek(seq_id, [self._entry(seq_id, token) for token in chunk.tokens])

    def publish_kv(self, seq_id: SeqId) -> FakeTransfer:
        chunk = self._chunks[seq_id]
        if not chunk.is_done:
            raise ValueError("the chunk is not done")

        def finish() -> None:
            for token in chunk.tokens:
                self._kv.append(seq_id, self._entry(seq_id, token))
            self._chunks.pop(seq_id, None)

        return FakeTransfer(self, len(chunk.tokens) * self.model.kv_bytes_per_cell, finish, lambda: None)

    def prefill_close(self, seq_id: SeqId) -> None:
        self._chunks.pop(seq_id, None)

    # KV memory
    def kv_len(self, seq_id: SeqId) -> int:
        return self._kv.n(seq_id)

    def kv_pages(self, seq_id: SeqId, n: int) -> np.ndarray:
        return NO_PAGES

    def kv_truncate(self, seq_id: SeqId, n: int) -> bool:
        if n and n < self._kv.n(seq_id) and not self.model.can_rollback:
            return False
        self._kv.truncate(seq_id, n)
        return True

    def resumable(self, seq_id: SeqId, n: int) -> int:
        return min(n, self.kv_len(seq_id))

    def keep_states(self, seq_id: SeqId, positions: Sequence[int]) -> None:
        """Do nothing: there are no states."""

    def state_bytes(self, seq_id: SeqId, n: int) -> int:
        return 0

    def copy_prefix(self, src: SeqId, dst: SeqId, n: int, start: int = 0) -> FakeTransfer:
        if self._kv.n(dst) != start or n > self._kv.n(src):
            raise ValueError("copy_prefix continues its destination and needs a long enough source")
        return self._append_later(dst, self._kv.tokens(src)[start:n], start)

    def export_state(self, seq_id: SeqId, n: int, start: int = 0) -> FakeExport:
        content = self._kv.tokens(seq_id)[start:n]
        return FakeExport(self, (n - start) * self.model.kv_bytes_per_cell, blob_of(content))

    def import_state(
        self, seq_id: SeqId, blob: bytes | bytearray | memoryview, n: int, start: int = 0, origin: int = 0
    ) -> FakeTransfer:
        """Raises UmaError(STATE_RESTORE_FAILED) for a foreign or damaged blob."""
        tokens = tokens_of_blob(bytes(blob))
        is_fit = tokens is not None and origin <= start <= n <= origin + len(tokens) and self._kv.n(seq_id) == start
        if self.faults.restore_failures > 0 or not is_fit:
            self.faults.restore_failures = max(0, self.faults.restore_failures - 1)
            raise UmaError(ErrorCode.STATE_RESTORE_FAILED)
        return self._append_later(seq_id, (tokens or [])[start - origin : n - origin], start)

    def _append_later(self, seq_id: SeqId, tokens: list[int], start: int) -> FakeTransfer:
        size = len(tokens) * self.model.kv_bytes_per_cell
        return FakeTransfer(self, size, lambda: self._fill(seq_id, tokens), lambda: self._kv.truncate(seq_id, start))

    def _fill(self, seq_id: SeqId, tokens: list[int]) -> None:
        for token in tokens:
            self._kv.append(seq_id, token)

    # life
    def interrupt(self) -> None:
        self._rung.set()

    def clear_interrupt(self) -> None:
        self._rung.clear()

    def fake_context(self, seq_id: SeqId, n: int) -> None:
        self._fill(seq_id, [0] * n)

    def abort(self) -> None:
        self._aborted.set()

    def memory(self) -> MemoryUse:
        return MemoryUse(self.model.weight_bytes, self.model.n_ctx * self.model.kv_bytes_per_cell, 0)

    def trim(self) -> int:
        return 0

    def pump_log(self) -> None:
        """Do nothing: it has no log."""

    def slot_warnings(self) -> int:
        return refusals.n

    def close(self) -> None:
        self.is_closed = True
        self._chunks.clear()

    def elapse(self, ns: float) -> None:
        """Let time pass: advance a manual clock, wait on a real one."""
        ns = max(0, int(self._jitter(ns)))
        advance = getattr(self.clock, "advance", None)
        if advance is not None:
            advance(ns)
        elif ns >= 1_000:
            self._aborted.wait(ns / 1e9)


def _runs(batch: Batch) -> list[tuple[int, list[int], list[int]]]:
    """(sequence, tokens, wants) per run of equal sequence ids."""
    runs: list[tuple[int, list[int], list[int]]] = []
    for i in range(batch.n):
        seq = int(batch.seq_id[i])
        if not runs or runs[-1][0] != seq:
            runs.append((seq, [], []))
        runs[-1][1].append(int(batch.tokens[i]))
        runs[-1][2].append(int(batch.want_logits[i]))
    return runs


def _hidden_rows(states: Sequence[int]) -> np.ndarray:
    """A vector of each sequence's content: (rows, N_EMBD) float32."""
    return np.array(
        [[((state >> 8 * i) & 255) / 128 - 1 for i in range(N_EMBD)] for state in states], np.float32
    ).reshape(-1, N_EMBD)


def _info(model: FakeModel) -> EngineInfo:
    n_ctx_seq = model.n_ctx if model.is_unified else model.n_ctx // model.n_seq_max
    return EngineInfo(
        engine="fake",
        model_name="fake",
        model_path="",
        fingerprint="fa4e" * 16,
        arch="fake",
        backend="fake",
        devices=("fake",),
        n_vocab=N_VOCAB,
        n_layer=24,
        n_ctx_train=model.n_ctx,
        n_ctx=model.n_ctx,
        n_ctx_seq=n_ctx_seq,
        n_seq_max=model.n_seq_max,
        n_batch=model.n_batch,
        n_ubatch=model.n_ubatch,
        n_threads=1,
        is_unified=model.is_unified,
        kv_type="f16",
        kv_bytes_per_cell=model.kv_bytes_per_cell,
        weight_bytes=model.weight_bytes,
        n_expert=model.n_expert,
        n_expert_used=model.n_expert_used,
        expert_bytes=model.expert_bytes,
        capabilities=Capabilities(
            model.n_prefill_slots,
            model.can_rollback,
            True,
            True,
            model.is_unified,
            min(N_VERIFY_ROWS, model.n_batch) if model.can_rollback else 0,
            model.ride_rows,
            can_mix_adapters=model.can_mix_adapters,
            computes_ahead=model.computes_ahead,
        ),
        adapters=tuple(Adapter(name, f"{name}.gguf", scale, name, 0) for name, scale in model.adapters),
        embedding=EmbeddingInfo(N_EMBD, "last", tuple(ROWS_OF), n_ctx_seq, model.n_ubatch),
        notes=(f"begin-of-text is token {BOS}",),
        n_outputs=max(16, model.n_seq_max),
        is_deterministic=True,
    )
