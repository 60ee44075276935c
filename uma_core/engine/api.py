"""The Engine contract: everything that the executor may ask of a model, and nothing about how engines do it.

Rules: one thread (the compute thread) calls everything except `tokenize`, `piece`, `prepare`, `facts`, `interrupt`,
`abort`, `memory`, `pump_log` and `slot_warnings`, which any thread may call. Nothing here assumes llama.cpp. Engines
never choose: they do what they are asked, or refuse.

KV model: the engine holds `n_seq_max` sequences. A sequence holds positions 0..n-1 (`kv_len`). A prompt is read either
by `decode` (one call, cannot be interrupted) or, if `Capabilities.n_prefill_slots` > 0, by `prefill_*`: one chunk whose
computation can pause between pieces of the graph, while decode calls run. A `Transfer` (`publish_kv`) makes its KV
visible to `decode`. KV moves only by transfers, which are done in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from uma_core.types import AdapterSet, SamplingParams, SeqId, TokenId

Progress = Callable[[float], bool]  # gets the loaded share, 0..1, on the loading thread; False cancels the load

NO_PAGES = np.zeros(0, np.int32)
NOT_DRAWN = -2  # in place of a token: none was drawn for this row (UMA_NOT_DRAWN)
WANT_TOKEN = 1  # the call draws the row's token (UMA_WANT_TOKEN)
WANT_LOGITS = 2  # `Engine.draw` draws the row's token (UMA_WANT_LOGITS)
WANT_IF_ACCEPTED = 3  # a draft's row: its token is drawn only if the draft was accepted (UMA_WANT_IF_ACCEPTED)


class DecodeStatus(IntEnum):
    OK = 0
    FULL = 1  # no cells for the whole batch; nothing changed; a smaller batch may fit (llama_decode rc 1)
    ABORTED = 2  # stopped between ubatches; re-read kv_len of every sequence in the batch (rc 2)
    BAD_BATCH = 3  # our bug; nothing changed (rc -1)
    FATAL = 4  # allocation or compute failed; re-read kv_len; the batch's sessions fail (rc < -1)


class DecodeOutcome(NamedTuple):
    """Result of one decode call. `tokens[i]` belongs to the i-th row with logits, -1 where its logits were not finite.

    It is NOT_DRAWN for rows of drafts from the first rejected draft on, and for rows whose token `draw` will draw.
    """

    status: DecodeStatus
    tokens: Sequence[TokenId]
    call_ns: int  # time from the call's start until the logits are readable
    sample_ns: int  # time for sampling all rows
    begun_ns: int = 0  # when `begin_next` had started the call ahead (monotonic clock); 0: `decode` started it


class PrefillStatus(IntEnum):
    PAUSED = 0  # between two pieces of the graph; more to compute
    DONE = 1  # the chunk is computed
    FAILED = 2  # the chunk is lost; earlier chunks of the sequence stay


class Rows(IntEnum):
    """The tokens of a chunk whose outputs are wanted. The numbers are those of uma_prefill_start."""

    NONE = 0
    LAST = 1
    ALL = 2
    FIRST = 3


POOLINGS = ("none", "mean", "cls", "last", "rank")
ROWS_OF = {
    "none": Rows.ALL,
    "mean": Rows.ALL,
    "cls": Rows.FIRST,
    "last": Rows.LAST,
}  # hidden states that a pooling takes


class EmbeddingInfo(NamedTuple):
    """Which inputs an engine can turn into vectors, and what vectors."""

    n_embd: int  # numbers of a vector
    pooling: str  # pooling for a request that names none
    poolings: tuple[str, ...]  # poolings that a request may name
    n_input: int  # most tokens of one input
    n_rows: int = 0  # most tokens of a chunk for which all hidden states are available
    # inputs are computed whole, several in one call, and pooled by the model (`encode_*`); else chunk by chunk
    # (`prefill_*`)
    is_whole: bool = False
    n_inputs: int = 1  # most inputs of one call, if they are computed whole
    n_scores: int = 1  # numbers that pooling "rank" gives


class PrefillOutcome(NamedTuple):
    status: PrefillStatus
    n_pieces: int  # pieces computed by this call
    fraction: float  # part of the chunk's work that is done, 0..1
    elapsed_ns: int
    longest_ns: int  # longest single piece of this call: a decode call would have waited for that long


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of this engine with this model; the policy reads them through DeviceView."""

    n_prefill_slots: int  # chunks that can be in progress (paused) at once; 0: no resumable prefill
    can_rollback: bool  # kv_truncate to any length works (not: SWA, recurrent)
    can_copy_prefix: bool  # copy_prefix works for part of a sequence
    can_abort: bool  # abort() reaches a running decode call
    # a decode call takes rows of any sequences; else each sequence has its own stream, and only neighbours share a call
    can_mix_rows: bool = False
    n_verify_rows: int = 0  # most rows of a decode call that holds drafts; 0: no drafts can be verified
    # sizes of a decode call, ascending, at which prompt tokens cost little beside other sequences' rows
    ride_rows: tuple[int, ...] = ()
    # rows of a decode call may have different LoRA adapters; else all must have the same
    can_mix_adapters: bool = True
    # `hidden` and `prefill_hidden` have rows for prediction heads after every decode call, and after every chunk
    keeps_hidden: bool = False
    computes_ahead: bool = False  # the device computes the call of `begin_next` while the host does other work
    has_states: bool = False  # recurrent layers: sequences can be cut, copied and continued at `resumable` places only


class Adapter(NamedTuple):
    """A LoRA adapter that is loaded with the model."""

    id: str
    path: str
    scale: float  # scale for requests that name no adapters
    fingerprint: str  # fingerprint of its file
    n_bytes: int
    task_name: str = ""  # the adapter's task and the text that should begin a prompt, as the file states them
    prompt_prefix: str = ""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts that never change while the engine lives."""

    engine: str  # "llama", "graph", "fake"
    model_name: str
    model_path: str
    fingerprint: str  # identity of the weights file: sha256 over header and samples of the data, hex
    arch: str
    backend: str  # "cpu", "cuda", "metal", "vulkan", "fake"
    devices: tuple[str, ...]
    n_vocab: int
    n_layer: int
    n_ctx_train: int
    n_ctx: int  # KV cells in total
    n_ctx_seq: int  # KV cells that one sequence may hold
    n_seq_max: int
    n_batch: int  # most tokens in one decode call
    n_ubatch: int  # most tokens in one prefill chunk
    n_threads: int
    is_unified: bool  # True: sequences share one pool of cells; False: one stream of n_ctx_seq cells each
    kv_type: str  # "f16", "bf16", "q8_0", "q4_0"
    kv_bytes_per_cell: int
    weight_bytes: int
    # cells that a sequence allocates at a time; if more than 1, sequences can share whole pages
    kv_page: int = 1
    n_expert: int = 0
    n_expert_used: int = 0
    expert_bytes: int = 0  # part of weight_bytes that is in expert tensors
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(0, False, False, False))
    embedding: EmbeddingInfo | None = None  # None: the model gives no vectors
    can_generate: bool = True  # False: encoders and rerankers
    suppressed: tuple[TokenId, ...] = ()  # tokens that the model must never generate: every session needs a sampler
    n_outputs: int = 1  # most rows with logits in one decode call
    kernels: str = ""  # instruction set of our own CPU kernels; "": the backend's own are used
    is_deterministic: bool = False  # a row's logits have the same bits whatever else its calls compute
    adapters: tuple[Adapter, ...] = ()
    # how the graph engine got its weights: "mapped", "read", "repacked", "repack cache" or "copied"; "": llama.cpp
    # loads them
    weights_from: str = ""
    notes: tuple[str, ...] = ()  # why features are off, for `status`
    # other facts that K and V depend on: kernels, experts in use, rotary positions. KV made with different facts does
    # not fit this engine
    kv_facts: tuple[str | int, ...] = ()

    @property
    def default_adapters(self) -> AdapterSet:
        """Adapters of requests that name none."""
        return tuple(sorted((adapter.id, adapter.scale) for adapter in self.adapters if adapter.scale))

    @property
    def adapter_bytes(self) -> int:
        return sum(adapter.n_bytes for adapter in self.adapters)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts beyond EngineInfo, for clients that write prompts or describe models."""

    chat_template: str | None  # Jinja; None: the file has none
    chat_template_tool_use: str | None  # another template for chats with tools, if the file has one
    special: dict[str, tuple[TokenId, str]]  # bos, eos, eot, fim_pre, …: id and text; absent: the model has none
    add_bos: bool  # tokenizing adds it
    add_eos: bool
    n_params: int
    n_embd: int
    vocab_type: str  # "spm", "bpe", "wpm", "ugm", "rwkv", "plamo2", "none", "fake"
    description: str  # "llama 7B Q4_0"
    pooling: str = ""  # pooling in the file of an embedding model: "mean", "cls", "last", "rank"; "": it names none
    add_sep: bool = False  # a separator stands between a reranker's query and document
    # a reranker's prompt, with {query} and {document} in it; "": query and document stand between special tokens
    rerank_template: str = ""


class MemoryUse(NamedTuple):
    """Bytes by purpose, for `status`."""

    weights: int
    kv: int
    compute: int


class Logprobs(NamedTuple):
    """Natural logarithms of the probabilities of a sampled token, and of the likeliest tokens, the likeliest first."""

    logprob: float
    top: tuple[tuple[TokenId, float], ...]


class Sampler(Protocol):
    """Turns logits rows of one session into tokens; keeps that session's penalty window. Owned by the session.

    Settings apply from the next row that is sampled. A decode call that was started ahead samples only when `decode`
    asks for it.
    """

    def accept(self, tokens: np.ndarray) -> None:
        """Add (n,) int32 tokens that the sampler did not choose itself (the prompt's tail) to the penalty window."""

    def set_mask(self, mask: np.ndarray | None) -> None:
        """Allow only some tokens from the next draw on; None: all.

        `mask`: uint32, a bit for each of n_vocab tokens, the lowest bit of a word first (as llguidance fills it). The
        sampler borrows the mask, and reads it for every row until another mask is set. So its owner may change it
        between two calls. With no bit set, sampling gives -1.
        """

    def allow_end(self, is_allowed: bool = True) -> None:
        """Allow or forbid end-of-generation tokens and those of `stop_token_ids`, which are forbidden until
        `min_tokens` have been generated.
        """

    def ban(self, tokens: Sequence[TokenId]) -> None:
        """Never draw these tokens. They replace those of the previous `ban`."""

    def force(self, token: TokenId | None) -> bool:
        """Make the next row and all later ones give this token, without sampling; None: sample rows again.

        False: the token is banned, and nothing has changed.
        """

    def recount(self, tokens: np.ndarray) -> None:
        """Set the latest tokens after some were taken back: (n,) int32, as many as penalties look at."""

    def logprobs(self) -> Logprobs | None:
        """Return the logprobs of the token that was drawn last, if the parameters ask for them."""

    def close(self) -> None:
        """Free it. Idempotent."""


class Transfer(Protocol):
    """KV in transit: to the decode memory, to another sequence, to or from host bytes.

    The sequences that it touches must not be decoded until it is done. `close` before the end undoes a partial import
    or copy (the destination becomes empty), and is harmless afterwards.
    """

    n_bytes: int  # bytes to move in total

    def step(self, until_ns: int) -> bool:
        """Move slices until the clock passes `until_ns`, at least one. True when all is moved."""

    def close(self) -> None: ...


class Export(Transfer, Protocol):
    """A transfer to host memory. `blob` is complete once `step` returned True."""

    blob: bytearray | memoryview


class Batch:
    """Tokens for one decode call, in numpy arrays that engines read without copying.

    Shapes: all (capacity,); the first `n` are in use. Reused tick after tick: `clear`, `add`, `extend`, or `advance`.
    """

    __slots__ = (
        "_cells",
        "n",
        "n_rows",
        "pos",
        "seq_id",
        "starts_next",
        "tokens",
        "wake_fd",
        "want_hidden",
        "want_logits",
    )

    def __init__(self, capacity: int) -> None:
        self.tokens = np.zeros(capacity, np.int32)
        self.pos = np.zeros(capacity, np.int32)
        self.seq_id = np.zeros(capacity, np.int32)
        self.want_logits = np.zeros(capacity, np.int8)
        self.n = 0
        self.n_rows = 0
        # unless something happens, the next call is for the same rows, one token further: `begin_next` may be called
        self.starts_next = False
        # the rows want hidden states instead of logits: no token is sampled, and `Engine.hidden` returns the states
        self.want_hidden = False
        # if the next `decode` computes, it writes 8 bytes to this file once it has released the GIL; -1: no file
        self.wake_fd = -1
        # single items go through memoryviews: a decode call empties the caches, and numpy's own item access is a lot of
        # code to fetch again
        self._cells = self.tokens.data, self.pos.data, self.seq_id.data, self.want_logits.data

    def clear(self) -> None:
        self.n = 0
        self.n_rows = 0

    def add(self, token: TokenId, pos: int, seq_id: SeqId, want_logits: bool) -> None:
        i = self.n
        tokens, positions, seq_ids, wanted = self._cells
        tokens[i] = token
        positions[i] = pos
        seq_ids[i] = seq_id
        wanted[i] = want_logits
        self.n = i + 1
        self.n_rows += want_logits

    def extend(self, tokens: np.ndarray, pos0: int, seq_id: SeqId, want_last: bool, want_all: bool = False) -> None:
        """Append a run of one sequence's tokens. The last one or all of them want logits."""
        i, k = self.n, len(tokens)
        self.tokens[i : i + k] = tokens
        self.pos[i : i + k] = np.arange(pos0, pos0 + k, dtype=np.int32)
        self.seq_id[i : i + k] = seq_id
        self.want_logits[i : i + k] = want_all
        self.want_logits[i + k - 1] = want_last or want_all
        self.n = i + k
        self.n_rows += k if want_all else want_last

    def want(self, rows: Rows) -> None:
        """Mark which tokens of a batch with a single run want an output."""
        self.want_logits[: self.n] = rows is Rows.ALL
        if self.n and rows in (Rows.LAST, Rows.FIRST):
            self.want_logits[self.n - 1 if rows is Rows.LAST else 0] = 1
        self.n_rows = int(self.want_logits[: self.n].sum())

    def verify(self, drafts: Sequence[TokenId], pos0: int, seq_id: SeqId, want: int) -> None:
        """Append draft tokens after their sequence's row; `want`: WANT_IF_ACCEPTED or WANT_LOGITS."""
        i, k = self.n, len(drafts)
        self.tokens[i : i + k] = drafts
        self.pos[i : i + k] = np.arange(pos0, pos0 + k, dtype=np.int32)
        self.seq_id[i : i + k] = seq_id
        self.want_logits[i : i + k] = want
        self.n = i + k
        self.n_rows += k

    def advance(self, tokens: Sequence[TokenId]) -> None:
        """Advance every row by one position. `tokens`: (n,) tokens that followed. Every row must have wanted logits."""
        cells, positions, _, _ = self._cells
        for i, token in enumerate(tokens):
            cells[i] = token
            positions[i] += 1


class Heads(Protocol):
    """Prediction heads (MTP) of a model, with a memory of their own for `n_seq` sequences. Compute thread only.

    A row is a token and the model's last hidden state of the position before it.
    """

    name: str
    n_seq: int
    n_vocab: int
    n_batch: int  # most rows of one call
    n_ctx_seq: int
    n_embd: int
    state: np.ndarray  # (n_embd,) float32: the heads' hidden state for the last row that was read

    def read(self, seq_id: SeqId, tokens: np.ndarray, pos0: int, states: np.ndarray) -> tuple[int, TokenId]:
        """Read (n,) int32 tokens at positions from pos0 on; `states`: (n, n_embd) float32, of the position before each.

        Returns 0 and the likeliest token after the last one, or the backend's error code and -1.
        """

    def truncate(self, seq_id: SeqId, n: int) -> None:
        """Keep the positions before n."""

    def memory(self) -> MemoryUse: ...

    def close(self) -> None:
        """Idempotent."""


class Engine(Protocol):
    """The module's docstring says which thread may call which method."""

    info: EngineInfo

    # text
    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[TokenId]: ...
    @property
    def n_vocab(self) -> int: ...

    def piece(self, token: TokenId, unparse_special: bool = False) -> bytes:
        """The token's bytes (possibly half a character); of control tokens b"", or their text with `unparse_special`.

        Any thread.
        """

    def is_eog(self, token: TokenId) -> bool: ...
    def is_control(self, token: TokenId) -> bool:
        """Whether it is not text: a control token, or one that the model defines in angle brackets (`<think>`)."""

    def chat_template(self) -> str | None:
        """The model's own Jinja template."""

    def special(self, name: str) -> str:
        """Text of the "bos" or "eos" token, for chat templates; "" if the model has none."""

    def facts(self) -> ModelFacts:
        """Facts about the model that clients may want. Any thread."""

    # decode
    def set_adapters(self, seq_id: SeqId, adapters: AdapterSet) -> None:
        """Compute the sequence with these of `info.adapters` from now on; (): without adapters.

        The sequence must be empty, or its KV must have been computed with the same adapters.
        """

    def sampler(self, params: SamplingParams, seed: int) -> Sampler:
        """Make a sampler. `params.logit_bias` must name tokens of the vocabulary, not texts."""

    def prepare(self, params: SamplingParams) -> None:
        """Do the slow part of `sampler` in advance. Any thread. Raises: BAD_REQUEST if this model cannot sample so."""

    def decode(self, batch: Batch, samplers: Sequence[Sampler | None]) -> DecodeOutcome:
        """Compute one decode call, then draw one token per row with logits, in batch order. A None sampler is greedy.

        Rows of one sequence must be consecutive and continue at kv_len. Without `can_mix_adapters` all sequences must
        have the same adapters, else BAD_BATCH. If the same `samplers` object is passed again, it must hold the same
        samplers. Blocks; releases the GIL.

        A token is drawn from a draft's row (WANT_IF_ACCEPTED) only if the token before it was drawn as drafted. So a
        sampler sees the same rows as without drafts. The KV of all rows is computed; `kv_truncate` removes that of
        rejected drafts.
        """

    def draw(self, row: int, sampler: Sampler | None) -> TokenId:
        """Draw the token of the last decode's row-th row, which must have WANT_LOGITS.

        Call it at most once for each row, before the next decode.
        """

    def begin_next(self, wake_fd: int) -> None:
        """Start the call after the last `decode` ahead, if its batch `starts_next`: the same rows, with the drawn
        tokens.

        Does not wait for the device. `wake_fd`: like that of a batch. Does nothing without `computes_ahead`.
        """

    def sync(self) -> None:
        """Discard the call that `begin_next` started. Other methods here do so if it matters to them; `decode` uses
        the call if it is asked for the same one.
        """

    def logits(self, row: int) -> np.ndarray:
        """(n_vocab,) float32 view of the last decode's row-th logits, borrowed until the next decode.

        It must not be called after `begin_next`.
        """

    def hidden(self) -> np.ndarray:
        """(rows, n_embd) float32: the last hidden states of a decoded batch with `want_hidden`, in batch order; with
        `keeps_hidden`, those of any batch's rows with logits.
        """

    # resumable prefill; a sequence has at most one chunk in progress
    def prefill_open(self, seq_id: SeqId, tokens: np.ndarray, want_logits: bool, hidden: Rows | None = None) -> bool:
        """Begin one chunk (<= n_ubatch tokens) after the sequence's last position. False: all prefill slots are taken.

        `hidden`: the last hidden states of these rows are wanted, and no logits. ALL is for up to
        `EmbeddingInfo.n_rows` tokens only.

        Raises: KV_FULL, INSUFFICIENT_MEMORY, DECODE_FAILED if chunks can no longer be read; BAD_BATCH: our bug.
        """

    def prefill_run(self, seq_id: SeqId, until_ns: int, quantum_ns: int, min_pieces: int) -> PrefillOutcome:
        """Compute pieces of about `quantum_ns` while another piece fits before `until_ns` (monotonic clock).

        Returns early, at the next piece, after `interrupt()`. Computes at least one piece, and at least `min_pieces`.
        """

    def prefill_sample(self, seq_id: SeqId, sampler: Sampler | None) -> TokenId:
        """After DONE with want_logits: draw the token that follows the chunk."""

    def prefill_logits(self, seq_id: SeqId) -> np.ndarray:
        """(n_vocab,) float32 view, borrowed until the slot computes again."""

    def prefill_hidden(self, seq_id: SeqId) -> np.ndarray:
        """(rows, n_embd) float32, after DONE: the hidden states that `hidden` asked for; with `keeps_hidden`, those of
        the last rows of any chunk, or of all rows if the engine can. The caller owns the array.
        """

    # for inputs that are computed whole (EmbeddingInfo.is_whole): `encode_open`, `prefill_run`, `prefill_close`
    def encode_open(self, seq_id: SeqId, inputs: Sequence[np.ndarray], pooling: str) -> bool:
        """Begin one call for these inputs.

        False: another call is in progress. Raises: INSUFFICIENT_MEMORY, DECODE_FAILED.
        """

    def encode_result(self, seq_id: SeqId) -> list[np.ndarray]:
        """After DONE, an array for each input: (1, n) float32, or a row per token with pooling "none". The caller owns
        the arrays.
        """

    def publish_kv(self, seq_id: SeqId) -> Transfer:
        """Make the computed chunks visible to `decode`. Frees the slot when it is done."""

    def prefill_close(self, seq_id: SeqId) -> None:
        """Free the slot, and drop a chunk in progress and KV that was not published. Idempotent."""

    # KV memory
    def kv_len(self, seq_id: SeqId) -> int:
        """Number of positions that `decode` sees; a slot's KV counts once it is published."""

    def kv_pages(self, seq_id: SeqId, n: int) -> np.ndarray:
        """(pages,) int32: numbers of the pages that hold the first n positions; empty if `kv_page` is 1.

        Two sequences with the same page number share that page's memory.
        """

    def kv_truncate(self, seq_id: SeqId, n: int) -> bool:
        """Keep the first n positions. False if the memory cannot roll back (then nothing has changed)."""

    # with `has_states`; otherwise every position is resumable
    def resumable(self, seq_id: SeqId, n: int) -> int:
        """The last position up to n to which the sequence can be cut back or copied; 0: none."""

    def keep_states(self, seq_id: SeqId, positions: Sequence[int]) -> None:
        """Keep the sequence's states after these numbers of positions, once they are computed, and drop any others."""

    def state_bytes(self, seq_id: SeqId, n: int) -> int:
        """Bytes of states that `export_state` of positions up to n adds to those of the positions.

        A sequence can continue only from a blob with a `resumable` end.
        """

    def copy_prefix(self, src: SeqId, dst: SeqId, n: int, start: int = 0) -> Transfer:
        """Append positions start..n of `src`, which may keep decoding, to `dst`, which holds `start` positions."""

    def export_state(self, seq_id: SeqId, n: int, start: int = 0) -> Export:
        """Export positions start..n as bytes that fit this model and KV type, with any number of sequences."""

    def import_state(
        self, seq_id: SeqId, blob: bytes | bytearray | memoryview, n: int, start: int = 0, origin: int = 0
    ) -> Transfer:
        """Append positions start..n of an exported blob to the sequence, which holds `start`. The blob begins at
        position `origin`.

        Raises: STATE_RESTORE_FAILED.
        """

    # interrupts, memory, the end
    def interrupt(self) -> None:
        """Make a running `prefill_run`, or the next one, return after a piece. Any thread."""

    def clear_interrupt(self) -> None:
        """Undo `interrupt`: the caller is about to handle the events that it announced."""

    def abort(self) -> None:
        """Make a running decode call, or the next one, return ABORTED soon, if `can_abort`. Once. Any thread."""

    def memory(self) -> MemoryUse:
        """Memory that the engine holds; none once it is closed. Any thread: a reload asks while streams run."""

    def trim(self) -> int:
        """Give unused memory back to the system, as far as possible. Returns bytes."""

    def pump_log(self) -> None:
        """Pass on the backend's log lines: warnings and errors as such, the rest as debug. Any thread."""

    def slot_warnings(self) -> int:
        """How often an engine of this process found no cells for a batch, a chunk or a transfer. Any thread."""

    def fake_context(self, seq_id: SeqId, n: int) -> None:
        """Make an empty sequence n positions long without computing them. Only for timing steps over a context."""

    def close(self) -> None:
        """Free everything. Idempotent."""
