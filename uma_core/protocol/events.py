"""Events for clients, and their JSON. EVENTS declares them once; docs/PROTOCOL.md is generated from it.

Cost: token events are the hot path (streams x tokens per second), so `Flight` keeps the part that never changes.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from uma_core.errors import UmaError
from uma_core.protocol.fields import Field, Kind
from uma_core.types import Ended, FinishReason, TokenId, TokenLogprob

WireId = str | int | None
LEAST_LOGPROB = -9999.0  # sent for tokens that are less likely or impossible, as in other servers


class Started(NamedTuple):
    """The request was accepted. Nothing goes over the wire, except the echo of a prompt line."""

    id: str


class Queued(NamedTuple):
    """Queue position of a request with `queue_updates`."""

    id: str
    position: int
    wait_ms: int


class Progress(NamedTuple):
    """Prompt progress of a request with `prompt_progress`."""

    id: str
    n_prompt: int
    n_cached: int
    n_read: int
    read_ms: float


class Prompt(NamedTuple):
    """Log probabilities of the next tokens of the prompt."""

    id: str
    logprobs: tuple[TokenLogprob, ...]


class Token(NamedTuple):
    id: str
    text: str  # whole characters
    token_id: TokenId
    logprobs: tuple[TokenLogprob, ...] | None = None
    which: int = -1  # index of the answer, if there are several
    n_tokens: int = 1  # tokens of the answer that it stands for


class End(NamedTuple):
    """One of several answers has ended."""

    id: str
    answer: Ended


class Eos(NamedTuple):
    """The one final event of an accepted request."""

    id: str
    reason: FinishReason
    text: str  # "" if it was streamed
    usage: dict[str, int]
    timing: dict[str, float]
    error: UmaError | None = None
    stop: dict[str, Any] | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    answers: tuple[Ended, ...] | None = None


class Error(NamedTuple):
    """A request was refused, or (id "") the connection has a problem."""

    id: str
    error: UmaError


class Reply(NamedTuple):
    """The answer to an operation other than generate."""

    id: str
    type: str
    data: dict[str, Any] | bytes  # bytes: the fields' JSON, without braces
    wire_id: WireId = None  # sent if `id` is "": for cancel, whose id names another request


Event = Started | Queued | Progress | Prompt | Token | End | Eos | Error | Reply

_ID = Field("id", Kind.ID, "the request's id, as the client sent it; null: unknown")


_LOGPROBS = Field(
    "logprobs",
    Kind.LIST,
    "with `logprobs`, for each token of the text: `id`, `bytes`, `logprob` (natural logarithm), and `top`: the "
    "likeliest tokens at that position",
)


_INDEX = Field("index", Kind.INTEGER, "index of the answer, if the request asked for several")
_USAGE = (
    Field("prompt_tokens", Kind.INTEGER, "tokens of the prompt"),
    Field("cached_tokens", Kind.INTEGER, "prompt tokens that were restored instead of computed"),
    Field("completion_tokens", Kind.INTEGER, "tokens that were generated"),
    Field("reasoning_tokens", Kind.INTEGER, "generated tokens that belong to thoughts; only with `reasoning`"),
    Field("accepted_prediction_tokens", Kind.INTEGER, "draft tokens that were accepted; only if any were verified"),
    Field("rejected_prediction_tokens", Kind.INTEGER, "draft tokens that were rejected; only if any were verified"),
    Field("dropped_tokens", Kind.INTEGER, "prompt tokens that `overflow` dropped; only if any were"),
)
_ENDING = (
    Field("reason", Kind.STRING, "", choices=tuple(reason.value for reason in FinishReason)),
    Field(
        "stop",
        Kind.OBJECT,
        "`text` or `token_id`: the entry of `stop` or `stop_token_ids` that ended the answer; absent: none did",
    ),
    _LOGPROBS._replace(help="with `logprobs`: for all tokens; in a stream, only for tokens that had no `token` event"),
    Field("usage", Kind.OBJECT, "", fields=_USAGE),
    Field("timing", Kind.OBJECT, "queue_ms, ttft_ms, total_ms, itl_p50_ms, itl_max_ms"),
    Field("error", Kind.OBJECT, "code, name, message, detail; only with reason `error`"),
)


class EventSpec(NamedTuple):
    name: str
    help: str
    fields: tuple[Field, ...]


EVENTS = (
    EventSpec(
        "queued",
        "Queue position of a request with `queue_updates`. Sent when the request is accepted, and whenever its "
        "position changes or the predicted wait grows.",
        (
            _ID,
            Field("position", Kind.INTEGER, "requests ahead of it; 0: it runs next or is running"),
            Field("wait_ms", Kind.INTEGER, "predicted time until prefill of its prompt begins; 0: it begins now"),
        ),
    ),
    EventSpec(
        "progress",
        "How much of the prompt has been read, for a request with `prompt_progress`. Sent after the first piece of the "
        "prompt, up to ten times a second after that, and at its end; always before any text, in a stream or not.",
        (
            _ID,
            Field("prompt_tokens", Kind.INTEGER, "tokens of the prompt"),
            Field("cached_tokens", Kind.INTEGER, "prompt tokens that were restored instead of computed"),
            Field("read_tokens", Kind.INTEGER, "prompt tokens restored or computed so far"),
            Field("read_ms", Kind.NUMBER, "time since reading began"),
        ),
    ),
    EventSpec(
        "prompt",
        "Log probabilities of the prompt's next tokens, for a request with `prompt_logprobs`. Sent in token order "
        "as they become known; always before any text, in a stream or not.",
        (
            _ID,
            _LOGPROBS._replace(
                help="for each token: `id`, `bytes`, `logprob` (null for the first token: nothing precedes it), `top`"
            ),
        ),
    ),
    EventSpec(
        "token",
        "New text of a streaming request; characters are never split.",
        (
            _ID,
            Field("text", Kind.STRING, "never empty"),
            Field("token_id", Kind.INTEGER, "the token that completed the text"),
            _INDEX,
            Field(
                "n_tokens",
                Kind.INTEGER,
                "tokens of the answer that the text covers: a character, or text that was held back, can take several; "
                "absent: 1",
            ),
            _LOGPROBS,
        ),
    ),
    EventSpec(
        "end",
        "The end of one of several answers (`n`) to a streaming request; `eos` follows the last one. A request that is "
        "cancelled before its prompt has been read gets only `eos`.",
        (_ID, _INDEX._replace(help="index of the answer"), *_ENDING),
    ),
    EventSpec(
        "eos",
        "The end of an accepted request; each gets exactly one. If there are several answers, it covers all of them: "
        "`reason` is the worst of their reasons, and `usage` is their sum.",
        (
            _ID,
            _ENDING[0],
            Field("text", Kind.STRING, "the whole text; only with `stream: false`"),
            Field(
                "answers",
                Kind.LIST,
                "for several answers with `stream: false`: `index`, `text`, and the fields of `end`; absent if the "
                "request was cancelled before its prompt had been read",
            ),
            *_ENDING[1:],
        ),
    ),
    EventSpec(
        "error",
        "The request was not accepted; nothing else follows for its id. With `id: null` it concerns the connection, "
        "or a request whose id is already in use or unreadable (`detail.id`).",
        (
            _ID,
            Field("code", Kind.STRING, "stable code, listed in docs/ERRORS.md"),
            Field("name", Kind.STRING, "stable name, for people"),
            Field("message", Kind.STRING, "what went wrong"),
            Field("detail", Kind.OBJECT, "for programs: `field`, `limit`, `retry_after_ms`, …"),
        ),
    ),
    EventSpec(
        "reply",
        "The answer to an operation other than generate, with that operation's fields in addition to these.",
        (_ID, Field("type", Kind.STRING, "the operation")),
    ),
)


def to_json(value: Any) -> bytes:
    """Encode compactly. Raises: TypeError, ValueError for values that JSON cannot represent (including NaN)."""
    return _dump(value).encode("utf-8", "replace")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def token_head(wire_id: WireId) -> str:
    """Return the part of a request's token events that never changes."""
    return '{"id":' + json.dumps(wire_id) + ',"event":"token","text":'


def token_json(head: str, event: Token) -> bytes:
    more = "" if event.which < 0 else f',"index":{event.which}'
    if event.n_tokens != 1:
        more += f',"n_tokens":{event.n_tokens}'
    if event.logprobs is not None:
        more += f',"logprobs":{_logprobs(event.logprobs)}'
    return f'{head}{encode_basestring(event.text)},"token_id":{event.token_id}{more}}}'.encode("utf-8", "replace")


def _logprobs(logprobs: tuple[TokenLogprob, ...]) -> str:
    """Encode token by token: one long call of the JSON encoder would hold the GIL, which the compute thread needs."""
    return f"[{','.join(map(_logprob, logprobs))}]"


def _logprob(one: TokenLogprob) -> str:
    top = [{"id": token, "bytes": list(data), "logprob": _finite(value)} for token, data, value in one.top]
    return _dump({"id": one.token_id, "bytes": list(one.data), "logprob": _finite(one.logprob), "top": top})


def _finite(value: float | None) -> float | None:
    """Round to six digits; JSON has no infinity."""
    return None if value is None else round(max(value, LEAST_LOGPROB), 6)


def queued_json(wire_id: WireId, event: Queued) -> bytes:
    return to_json({"id": wire_id, "event": "queued", "position": event.position, "wait_ms": event.wait_ms})


def progress_json(wire_id: WireId, event: Progress) -> bytes:
    return to_json(
        {
            "id": wire_id,
            "event": "progress",
            "prompt_tokens": event.n_prompt,
            "cached_tokens": event.n_cached,
            "read_tokens": event.n_read,
            "read_ms": event.read_ms,
        }
    )


def eos_json(wire_id: WireId, event: Eos, has_text: bool) -> bytes:
    value: dict[str, Any] = {"id": wire_id, "event": "eos", "reason": event.reason.value}
    if has_text and event.answers is None:
        value["text"] = event.text
    error = event.error.to_dict() if event.error is not None else None
    json_text = _with_ending(value, event, error)
    if event.answers is not None:
        json_text = f'{json_text[:-1]},"answers":[{",".join(_answer(answer) for answer in event.answers)}]}}'
    return json_text.encode("utf-8", "replace")


def prompt_json(wire_id: WireId, event: Prompt) -> bytes:
    head = _dump({"id": wire_id, "event": "prompt"})
    return f'{head[:-1]},"logprobs":{_logprobs(event.logprobs)}}}'.encode("utf-8", "replace")


def end_json(wire_id: WireId, event: End) -> bytes:
    answer = event.answer
    value = {"id": wire_id, "event": "end", "index": answer.which, "reason": answer.reason.value}
    return _with_ending(value, answer, answer.error).encode("utf-8", "replace")


def _answer(answer: Ended) -> str:
    return _with_ending(
        {"index": answer.which, "text": answer.text, "reason": answer.reason.value}, answer, answer.error
    )


def _with_ending(value: dict[str, Any], event: Eos | Ended, error: dict[str, Any] | None) -> str:
    """Encode `value` together with the fields that the end of an answer and of a request share."""
    if event.stop is not None:
        value["stop"] = event.stop
    value["usage"] = event.usage
    value["timing"] = event.timing
    if error is not None:
        value["error"] = error
    json_text = _dump(value)
    return json_text if event.logprobs is None else f'{json_text[:-1]},"logprobs":{_logprobs(event.logprobs)}}}'


def error_json(wire_id: WireId, error: UmaError) -> bytes:
    return to_json({"id": wire_id, "event": "error", **error.to_dict()})


def reply_json(wire_id: WireId, event: Reply) -> bytes:
    if isinstance(event.data, bytes):
        return b"{" + event.data + b"," + to_json({"id": wire_id, "event": "reply", "type": event.type})[1:]
    return to_json({**event.data, "id": wire_id, "event": "reply", "type": event.type})
