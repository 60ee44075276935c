"""The nouns that every layer shares. Values only: no behaviour, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

TokenId = int
SeqId = int


class Lane(IntEnum):
    """Quality-of-service class. Lower is more urgent."""

    INTERACTIVE = 0
    BACKGROUND = 1


class Phase(IntEnum):
    """Where a session stands (docs/SCHEDULER.md draws the machine)."""

    QUEUED = 0  # admitted to a lane's queue; no sequence yet
    PREFILL = 1  # owns a sequence; prompt tokens are left to compute
    DECODE = 2  # emits one token per decode call
    PARKED = 3  # its KV left the device; the sequence is free
    DONE = 4  # its final event is sent


class FinishReason(str, Enum):
    """Why a request's one final event was sent."""

    STOP = "stop"  # end-of-generation token or stop string
    LENGTH = "length"  # max_tokens or the context is used up
    CANCELLED = "cancelled"  # cancel request or the peer hung up
    TIMEOUT = "timeout"  # the request's timeout_ms passed
    DRAINING = "draining"  # the drain deadline passed
    ERROR = "error"  # an `error` event said why


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a row of logits becomes a token. temperature 0 is greedy, and then the rest is unused."""

    temperature: float = 0.0
    top_k: int = 40  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0  # 1: none
    repeat_last_n: int = 64
    seed: int | None = None  # None: drawn per request
    ban_eog: bool = False  # never draw an end-of-generation token
    logprobs: int | None = None  # tell log probabilities: of the drawn token and of so many others
    post_sampling_probs: bool = False  # ... of what the samplers left, instead of the model's own

    @property
    def is_greedy(self) -> bool:
        """The largest logit, and nothing else, decides."""
        return self.temperature <= 0.0 and self.repeat_penalty == 1.0 and not self.ban_eog

    @property
    def needs_sampler(self) -> bool:
        """More is asked for than the likeliest token."""
        return not self.is_greedy or self.logprobs is not None

    @property
    def n_recent(self) -> int:
        """How many of the last tokens change what is drawn next."""
        return self.repeat_last_n if self.repeat_penalty != 1.0 else 0


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets of one request, ns; 0 where the request gave none."""

    ttft_ns: int = 0
    tbt_ns: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A validated generate request, as protocol.messages decodes it. Exactly one of the three inputs is set."""

    id: str
    prompt: str | None = None
    tokens: tuple[TokenId, ...] | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    max_tokens: int | None = None  # None: the configured default
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    stream: bool = True
    lane: Lane | None = None  # None: inferred
    slo: Slo = field(default_factory=Slo)
    cache_prompt: bool = True
    ignore_eos: bool = False
    timeout_ns: int = 0  # 0: none
    overflow: str = ""  # "", "error", "truncate-middle", "shift"
    account: str = ""  # whom a gateway asks for; "": the peer itself
    queue_updates: bool = False  # tell where it stands in the queue
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection, by the kernel's word."""

    uid: int = -1
    gid: int = -1
    pid: int = -1
