"""The types that all layers share. Values only: no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

TokenId = int
SeqId = int
AdapterSet = tuple[tuple[str, float], ...]  # LoRA adapters of a row: (id, scale), sorted by id; no scale is 0


class Priority(IntEnum):
    """Class of a request. Lower is more urgent."""

    INTERACTIVE = 0
    BACKGROUND = 1


PRIORITIES = tuple(priority.name.lower() for priority in Priority)  # their names, on the wire too


class Phase(IntEnum):
    """The state of a session (docs/SCHEDULER.md has the diagram)."""

    QUEUED = 0  # waits in the queue of its priority; no sequence yet
    PREFILL = 1  # owns a sequence; some prompt tokens are not computed yet
    DECODE = 2  # emits one token per decode call
    PARKED = 3  # its KV has left the device; the sequence is free
    DONE = 4  # its final event was sent


class FinishReason(str, Enum):
    """Why a request's one final event was sent."""

    STOP = "stop"  # end-of-generation token or stop string
    LENGTH = "length"  # max_tokens or the context is used up
    CANCELLED = "cancelled"  # a cancel request, or the peer hung up
    TIMEOUT = "timeout"  # the request's timeout_ms passed
    DRAINING = "draining"  # the drain deadline passed
    ERROR = "error"  # an `error` event said why


USUAL_ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")


class Ended(NamedTuple):
    """How one of several answers ended."""

    which: int  # its `index` on the wire
    reason: FinishReason
    text: str  # "" if it was streamed
    usage: dict[str, int]
    timing: dict[str, float]
    error: dict[str, Any] | None = None  # code, name, message, detail
    stop: dict[str, Any] | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


COLDEST = 1e-6  # below this temperature only the likeliest token can be drawn, and dividing logits by it might overflow


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a row of logits becomes a token. With temperature 0, the likeliest token after penalties and biases is taken.

    Every default is off, except `top_k`. Names and meanings are those of llama.cpp (common/common.h).
    """

    temperature: float = 0.0
    top_k: int = 40  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0  # 1: none
    repeat_last_n: int = 64  # -1: the context
    seed: int | None = None  # None: drawn per request
    ban_eog: bool = False  # never draw an end-of-generation token
    samplers: tuple[str, ...] = USUAL_ORDER
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_n_sigma: float = -1.0
    typical_p: float = 1.0
    min_keep: int = 0  # top-p, min-p, typical-p and XTC keep at least this many tokens
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64  # -1: the context
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0  # version 1 or 2, instead of `samplers`
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    logit_bias: tuple[tuple[TokenId | str, float], ...] = ()  # -inf bans; the intake turns texts into tokens
    min_tokens: int = 0  # an end-of-generation token may come only after this many tokens
    stop_token_ids: tuple[TokenId, ...] = ()  # they end the text like end-of-generation tokens
    logprobs: int | None = None  # log probabilities of the drawn token and of this many others
    post_sampling_probs: bool = False  # take them after the samplers, instead of from the model's own distribution

    @property
    def takes_best(self) -> bool:
        """Whether the likeliest token after biases and penalties is taken, without drawing."""
        return self.temperature < COLDEST and self.dynatemp_range <= 0.0

    @property
    def has_penalties(self) -> bool:
        is_on = self.repeat_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
        return is_on and self.repeat_last_n != 0 and self.has("penalties")

    @property
    def has_dry(self) -> bool:
        return self.dry_multiplier > 0.0 and self.dry_base >= 1.0 and self.dry_penalty_last_n != 0 and self.has("dry")

    def has(self, sampler: str) -> bool:
        return not self.mirostat and sampler in self.samplers

    @property
    def is_greedy(self) -> bool:
        """Whether only the largest logit decides."""
        is_edited = self.ban_eog or self.logit_bias or self.min_tokens
        return self.takes_best and not (is_edited or self.has_penalties or self.has_dry)

    @property
    def needs_sampler(self) -> bool:
        """Whether the largest logit alone is not enough."""
        return not self.is_greedy or self.logprobs is not None

    def n_recent(self, n_ctx: int) -> int:
        """Return how many of the last tokens influence the next draw, in a context of `n_ctx`."""
        windows = [self.repeat_last_n] * self.has_penalties + [self.dry_penalty_last_n] * self.has_dry
        return max((n_ctx if n < 0 else min(n, n_ctx) for n in windows), default=0)


class TokenLogprob(NamedTuple):
    """One token of an answer or a prompt, and likely alternatives, likeliest first."""

    token_id: TokenId
    data: bytes
    logprob: float | None  # natural logarithm; None: the first token, which nothing precedes
    top: tuple[tuple[TokenId, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets of one request, in ns; 0: the request set none."""

    ttft_ns: int = 0
    tbt_ns: int = 0


@dataclass(frozen=True, slots=True)
class Trigger:
    """A text or token that starts a lazy constraint."""

    kind: str  # "word", "token", "pattern"
    value: str | int  # int: a token's id
    is_after: bool = False  # the grammar begins after the trigger's own text


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form that an answer must have. `uma_core.constraint` enforces it."""

    kind: str  # "json_schema", "regex", "choices", "gbnf", "lark"
    value: Any  # the schema, the choices as a list, or the grammar's text
    triggers: tuple[Trigger, ...] = ()  # none: constrained from the first token
    prefix: str = ""  # text that the grammar consumes before the first token


@dataclass(frozen=True, slots=True)
class Infill:
    """A gap in a file: the text before and after it, and other files of its project, the most relevant last."""

    prefix: str
    suffix: str
    extra: tuple[tuple[str, str], ...] = ()  # file name and text


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The texts that begin and end a thought.

    After `budget_tokens`, `message` and then `end` are forced.
    """

    start: str
    end: str
    budget_tokens: int | None = None  # None: no limit
    message: str = ""


def thought_mark(text: str) -> str:
    """Return the text that marks a thought's start or end: without surrounding blanks, which vary, unless it is only
    blanks.
    """
    return text.strip() or text


@dataclass(frozen=True, slots=True)
class Embed:
    """The work of `embed` and `rerank`: vectors of inputs, or scores of documents for a query."""

    op: str  # "embed" or "rerank"
    inputs: tuple[str | tuple[TokenId, ...], ...] = ()
    query: str = ""
    documents: tuple[str, ...] = ()
    pooling: str = ""  # "": the model's own
    normalize: bool | None = None  # None: vectors are normalized unless pooling is none or rank
    dimensions: int = 0  # 0: all
    is_base64: bool = False
    truncate: bool = False  # shorten inputs that are too long; false: refuse them
    top_n: int = 0  # 0: all documents
    reply_bytes: int = 0  # size limit of the reply


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request for the model, as protocol.messages decodes it.

    Exactly one of the four inputs, or `embed`, is set.
    """

    id: str
    prompt: str | tuple[str | TokenId, ...] | None = None  # text, or parts of it
    tokens: tuple[TokenId, ...] | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    infill: Infill | None = None
    embed: Embed | None = None
    max_tokens: int | None = None  # None: the configured default
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    banned_strings: tuple[str, ...] = ()  # the answer must not contain them
    suffix: str = ""  # text after the gap that follows `prompt` or `tokens`
    n: int = 1  # answers
    best_of: int = 0  # generate this many answers and return the n likeliest; 0: n
    echo: bool = False  # an answer begins with its prompt's text
    prompt_logprobs: int | None = None  # log probabilities of each prompt token and of this many others
    stream: bool = True
    priority: Priority | None = None  # None: inferred
    slo: Slo = field(default_factory=Slo)
    cache_prompt: bool = True
    ignore_eos: bool = False
    timeout_ns: int = 0  # 0: none
    overflow: str = ""  # "", "error", "truncate-middle", "shift"
    # control tokens that may appear in the answer's text; replaced by ids at the intake
    preserved_tokens: tuple[str | TokenId, ...] = ()
    model: str = ""  # fingerprint of the model that the prompt is written for; "": any model
    account: str = ""  # account that a gateway acts for; "": the peer itself
    queue_updates: bool = False  # report its queue position
    prompt_progress: bool = False  # report the progress of its prompt
    constraint: Constraint | None = None
    reasoning: Reasoning | None = None
    lora: AdapterSet | None = None  # None: as configured
    prediction: str | tuple[TokenId, ...] = ""  # text that the answer may repeat; the intake replaces it by token ids
    speculate: str = ""  # "auto", "lookup", "draft", "off"; "": as configured
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def n_answers(self) -> int:
        """Return how many answers to generate: with `best_of`, more than are returned."""
        return max(self.n, self.best_of)


@dataclass(frozen=True, slots=True)
class Peer:
    """The peer of a connection, as the kernel reports it."""

    uid: int = -1
    gid: int = -1
    pid: int = -1
    groups: tuple[int, ...] = field(default=(), compare=False)  # supplementary groups, if the system reports them


# One additional place per this many, only for clients that hold none, so that a client that fills the places cannot
# lock the others out.
EXTRA_SHARE = 8


def n_extra(n_places: int) -> int:
    """Return the number of additional places for requests or connections; only clients that hold none get them."""
    return max(1, n_places // EXTRA_SHARE)
