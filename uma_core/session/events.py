"""The values that the I/O thread and the compute thread exchange.

Commands go to the compute thread and events come back, both through lock-free deques and a wake-up. `conn_id` and
`request_id` together identify a request on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from uma_core.errors import UmaError
from uma_core.types import Ended, FinishReason, Peer, Request, TokenId, TokenLogprob


class Submit(NamedTuple):
    """A request with its prompt tokenised. The compute thread accepts or refuses it."""

    conn_id: int
    peer: Peer
    request: Request
    tokens: Sequence[TokenId] | np.ndarray
    t_received_ns: int  # when its frame was decoded
    # token counts at which a chat message ends: preferred snapshot points. For embed and rerank: where each input ends
    message_ends: tuple[int, ...] = ()
    text: Any = None  # the engine whose vocabulary made `tokens`; another engine, after a reload, answers Stale
    matcher: Any = None  # session.session.Matcher, for the same vocabulary; None: the answer is unconstrained
    echo: str = ""  # text that every answer begins with
    cancelled: frozenset[int] = frozenset()  # answers that were cancelled before they began


class Cancel(NamedTuple):
    conn_id: int
    request_id: str
    which: int | None = None  # one of its answers; None: all


class HangUp(NamedTuple):
    """The peer is gone: cancel all its requests; it gets no more events."""

    conn_id: int


class Hold(NamedTuple):
    """The reader fell behind (held) or caught up (not held): pause or resume its sequences."""

    conn_id: int
    is_held: bool


class Call(NamedTuple):
    """Run `function` on the compute thread between two ticks; `reply` gets its result or exception there."""

    function: Callable[[], Any]
    reply: Callable[[Any, BaseException | None], None]


Command = Submit | Cancel | HangUp | Hold | Call


class Accepted(NamedTuple):
    """The request is queued. `position` is its place among those of its priority (0: runs next)."""

    conn_id: int
    request_id: str
    position: int


class Queued(NamedTuple):
    """The queue position of a request with `queue_updates`. Sent after Accepted and before a sequence is assigned."""

    conn_id: int
    request_id: str
    position: int  # requests ahead of it
    wait_ns: int  # predicted


class Progress(NamedTuple):
    """How much of a prompt has been read, for a request with `prompt_progress`. Counts are tokens."""

    conn_id: int
    request_id: str
    n_prompt: int
    n_cached: int  # of these, restored instead of computed
    n_read: int  # of these, restored or computed so far
    read_ns: int  # since its sequence was assigned


class Refused(NamedTuple):
    """The request was not accepted; this is its only event."""

    conn_id: int
    request_id: str
    error: UmaError


class Stale(NamedTuple):
    """Not accepted, because the model changed after the prompt was tokenised. It is submitted again."""

    conn_id: int
    request_id: str


class Token(NamedTuple):
    """New text of a streaming request. `text` is whole characters, possibly of several tokens; never empty."""

    conn_id: int
    request_id: str
    text: str
    token_id: TokenId  # the token that completed the text
    logprobs: tuple[TokenLogprob, ...] | None = None  # of the text's tokens; None: not requested
    which: int = -1  # index of the answer, if there are several
    n_tokens: int = 1  # tokens of the answer that it stands for; 0: the text is the prompt's, or ends inside a token


class Prompt(NamedTuple):
    """Log probabilities of the next tokens of a request's prompt."""

    conn_id: int
    request_id: str
    logprobs: tuple[TokenLogprob, ...]


class End(NamedTuple):
    """One of several answers to a streaming request has ended."""

    conn_id: int
    request_id: str
    answer: Ended


class Final(NamedTuple):
    """The one final event of an accepted request.

    `text` is everything generated (stream: false) or "" (stream: true).
    """

    conn_id: int
    request_id: str
    reason: FinishReason
    text: str
    usage: dict[str, int]  # prompt_tokens, cached_tokens, completion_tokens
    timing: dict[str, float]  # queue_ms, ttft_ms, total_ms, itl_p50_ms, itl_max_ms
    error: UmaError | None  # with reason ERROR
    stop: dict[str, Any] | None = None  # the `text` or `token_id` in the request that ended the answer
    logprobs: tuple[TokenLogprob, ...] | None = None  # of all tokens; in a stream, of those that no Token event carried
    answers: tuple[Ended, ...] | None = None  # if the request has several and does not stream
    # session.embedding.Embedding with all its vectors, for a completed embed or rerank request
    embedding: Any = None


Event = Accepted | Queued | Progress | Refused | Stale | Prompt | Token | End | Final
