"""Events that go to a client, and their JSON. EVENTS declares them once; docs/PROTOCOL.md follows from it.

Cost: a token event is the hot path (streams x tokens per second); its unchanging part is kept in `Flight`.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from uma_core.errors import UmaError
from uma_core.protocol.fields import Field, Kind
from uma_core.types import FinishReason, TokenId, TokenLogprob

WireId = str | int | None
LEAST_LOGPROB = -9999.0  # what is less likely, or impossible, as other servers write it


class Started(NamedTuple):
    """The request was accepted. Says nothing on the wire, except the echo of a prompt line."""

    id: str


class Queued(NamedTuple):
    """Where a request that asked for it stands."""

    id: str
    position: int
    wait_ms: int


class Token(NamedTuple):
    id: str
    text: str  # whole characters
    token_id: TokenId
    logprobs: tuple[TokenLogprob, ...] | None = None


class Eos(NamedTuple):
    """The one final event of an accepted request."""

    id: str
    reason: FinishReason
    text: str  # "" where it was streamed
    usage: dict[str, int]
    timing: dict[str, float]
    error: UmaError | None = None
    stop: dict[str, Any] | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


class Error(NamedTuple):
    """A request was refused, or (id "") the connection has a problem."""

    id: str
    error: UmaError


class Reply(NamedTuple):
    """The answer to an operation other than generate."""

    id: str
    type: str
    data: dict[str, Any] | bytes  # bytes: the fields' JSON, without braces
    wire_id: WireId = None  # echoed with `id` "": cancel, whose id is the request's


Event = Started | Queued | Token | Eos | Error | Reply

_ID = Field("id", Kind.ID, "of the request, as it was given; null where none is known")


_LOGPROBS = Field(
    "logprobs",
    Kind.LIST,
    "with `logprobs`, of each token of the text: `id`, `bytes`, `logprob` (natural logarithm), `top`: the likeliest in its place",
)


class EventSpec(NamedTuple):
    name: str
    help: str
    fields: tuple[Field, ...]


EVENTS = (
    EventSpec(
        "queued",
        "Where a request with `queue_updates` stands: once when it is accepted, then whenever its position changes or the wait grows.",
        (
            _ID,
            Field("position", Kind.INTEGER, "requests that go before it; 0: none, it runs next or runs already"),
            Field("wait_ms", Kind.INTEGER, "predicted time until its prompt is read; 0: it begins now"),
        ),
    ),
    EventSpec(
        "token",
        "New text of a streaming request; characters are never split.",
        (
            _ID,
            Field("text", Kind.STRING, "never empty"),
            Field("token_id", Kind.INTEGER, "the token that completed the text"),
            _LOGPROBS,
        ),
    ),
    EventSpec(
        "eos",
        "The end of an accepted request. Exactly one for each.",
        (
            _ID,
            Field("reason", Kind.STRING, "", choices=tuple(reason.value for reason in FinishReason)),
            Field("text", Kind.STRING, "all of the text; only with `stream: false`"),
            Field("stop", Kind.OBJECT, "`text` or `token_id`: which of `stop` and `stop_token_ids` ended it, where one did"),
            _LOGPROBS._replace(help="with `logprobs`: of all tokens; of a stream those that came with no `token` event"),
            Field("usage", Kind.OBJECT, "prompt_tokens, cached_tokens, completion_tokens"),
            Field("timing", Kind.OBJECT, "queue_ms, ttft_ms, total_ms, itl_p50_ms, itl_max_ms"),
            Field("error", Kind.OBJECT, "code, name, message, detail; only with reason `error`"),
        ),
    ),
    EventSpec(
        "error",
        "The request was not accepted; nothing else follows for its id. With `id: null` it concerns the connection, "
        "or a request whose id is taken or unreadable (`detail.id`).",
        (
            _ID,
            Field("code", Kind.STRING, "stable: docs/ERRORS.md"),
            Field("name", Kind.STRING, "stable, for people"),
            Field("message", Kind.STRING, "what was wrong this time"),
            Field("detail", Kind.OBJECT, "for machines: `field`, `limit`, `retry_after_ms`, …"),
        ),
    ),
    EventSpec(
        "reply",
        "The answer to an operation other than generate, with that operation's fields beside these.",
        (_ID, Field("type", Kind.STRING, "the operation")),
    ),
)


def to_json(value: Any) -> bytes:
    """Encode compactly. Raises: TypeError, ValueError for what JSON cannot say (NaN too)."""
    return _dump(value).encode("utf-8", "replace")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def token_head(wire_id: WireId) -> str:
    """Give the part of a request's token events that never changes."""
    return '{"id":' + json.dumps(wire_id) + ',"event":"token","text":'


def token_json(head: str, event: Token) -> bytes:
    more = "" if event.logprobs is None else f',"logprobs":{_dump(logprobs_list(event.logprobs))}'
    return f'{head}{encode_basestring(event.text)},"token_id":{event.token_id}{more}}}'.encode("utf-8", "replace")


def logprobs_list(logprobs: tuple[TokenLogprob, ...]) -> list[dict[str, Any]]:
    return [
        {
            "id": one.token_id,
            "bytes": list(one.data),
            "logprob": _finite(one.logprob),
            "top": [{"id": token, "bytes": list(data), "logprob": _finite(value)} for token, data, value in one.top],
        }
        for one in logprobs
    ]


def _finite(value: float | None) -> float | None:
    """Six digits; JSON has no infinity."""
    return None if value is None else round(max(value, LEAST_LOGPROB), 6)


def queued_json(wire_id: WireId, event: Queued) -> bytes:
    return to_json({"id": wire_id, "event": "queued", "position": event.position, "wait_ms": event.wait_ms})


def eos_json(wire_id: WireId, event: Eos, has_text: bool) -> bytes:
    value: dict[str, Any] = {"id": wire_id, "event": "eos", "reason": event.reason.value}
    if has_text:
        value["text"] = event.text
    if event.stop is not None:
        value["stop"] = event.stop
    if event.logprobs is not None:
        value["logprobs"] = logprobs_list(event.logprobs)
    value["usage"] = event.usage
    value["timing"] = event.timing
    if event.error is not None:
        value["error"] = event.error.to_dict()
    return to_json(value)


def error_json(wire_id: WireId, error: UmaError) -> bytes:
    return to_json({"id": wire_id, "event": "error", **error.to_dict()})


def reply_json(wire_id: WireId, event: Reply) -> bytes:
    if isinstance(event.data, bytes):
        return b"{" + event.data + b"," + to_json({"id": wire_id, "event": "reply", "type": event.type})[1:]
    return to_json({**event.data, "id": wire_id, "event": "reply", "type": event.type})
