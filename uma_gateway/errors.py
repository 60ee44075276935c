"""Errors for clients: one exception, which each API family writes in its own form.

Rules: every refusal of the daemon gets its HTTP status here, by its code; nothing matches on message text.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from uma_core.errors import BY_CODE, ErrorCode, Side
from uma_gateway.chat.errors import ChatCode, ChatError

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
PREFIX = "constraint.prefix"  # the daemon's field for the text that an answer continues


class Kind(Enum):
    """Says who must act, and gives the HTTP status. The text is llama-server's and OpenAI's `type`."""

    INVALID = (400, "invalid_request_error")
    CONTEXT = (400, "exceed_context_size_error")
    AUTHENTICATION = (401, "authentication_error")
    PERMISSION = (403, "permission_error")
    NOT_FOUND = (404, "not_found_error")
    METHOD = (405, "invalid_request_error")
    TIMEOUT = (408, "timeout_error")
    TOO_LARGE = (413, "request_too_large")
    RATE_LIMIT = (429, "rate_limit_error")
    CANCELLED = (499, "request_cancelled")
    SERVER = (500, "server_error")
    NOT_SUPPORTED = (501, "not_supported_error")
    UNAVAILABLE = (503, "unavailable_error")
    GENERATION_TIMEOUT = (504, "timeout_error")

    @property
    def status(self) -> int:
        return self.value[0]

    @property
    def type(self) -> str:
        return self.value[1]


class GatewayError(Exception):
    """An error for a client. `param` names the field at fault, `code` is a stable word for machines, and `extra` is
    added to the error object.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after_ms: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_ms = retry_after_ms
        self.extra = dict(extra or {})
        self.headers: list[tuple[bytes, bytes]] = []
        self.request_id: str | None = None  # id of the request that gets this error

    @property
    def status(self) -> int:
        return self.kind.status

    def rename(self, names: Mapping[str, str]) -> None:
        """Replace the daemon's name of a field with the client's, and keep an index after it. `names`: the client's
        names that differ, by the daemon's.
        """
        named = self.param or ""
        field = re.split(r"[.\[]", named, maxsplit=1)[0]
        name = names.get(field)
        if name is not None:
            name += named[len(field) :] if named.endswith("]") and "." not in named else ""
            self.param, self.message = name, self.message.replace(f"`{named}`", f"`{name}`")

    def values(self) -> dict[str, Any]:
        """Return the error as plain values, for another process."""
        names = ("message", "param", "code", "retry_after_ms", "extra")
        return {"kind": self.kind.name, **{name: getattr(self, name) for name in names}}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> GatewayError:
        """Make the error from its `values`."""
        return cls(**{**values, "kind": Kind[values["kind"]]})


def invalid(message: str, param: str | None = None, code: str | None = None) -> GatewayError:
    return GatewayError(Kind.INVALID, message, param, code)


def unsupported(message: str, param: str | None = None) -> GatewayError:
    return GatewayError(Kind.NOT_SUPPORTED, message, param, "not_supported")


def shortage(error: Exception) -> GatewayError | None:
    """Return an error that may be retried if the system had no descriptor, process, thread or memory for a request.
    None: `error` has another cause.
    """
    if isinstance(error, MemoryError):
        error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if not isinstance(error, OSError) or error.errno not in SHORTAGES:
        return None
    message = f"the gateway is short of what the system allows it: {error.strerror}"
    return GatewayError(Kind.UNAVAILABLE, message, code="overloaded")


_KINDS = {  # of the others: INVALID if the request is at fault, else SERVER
    ErrorCode.PROMPT_TOO_LARGE: Kind.CONTEXT,
    ErrorCode.FRAME_TOO_LARGE: Kind.TOO_LARGE,
    ErrorCode.OVERLOADED: Kind.RATE_LIMIT,
    ErrorCode.TOO_MANY_SESSIONS: Kind.RATE_LIMIT,
    ErrorCode.MODEL_NOT_LOADED: Kind.UNAVAILABLE,
    ErrorCode.MODEL_CHANGED: Kind.UNAVAILABLE,
    ErrorCode.INSUFFICIENT_MEMORY: Kind.UNAVAILABLE,
    ErrorCode.ENGINE_HUNG: Kind.UNAVAILABLE,
    ErrorCode.SHUTTING_DOWN: Kind.UNAVAILABLE,
    ErrorCode.DRAINING: Kind.UNAVAILABLE,
    ErrorCode.KV_FULL: Kind.UNAVAILABLE,
    ErrorCode.ADMIN_ONLY: Kind.PERMISSION,
    ErrorCode.FORBIDDEN: Kind.UNAVAILABLE,
    ErrorCode.NOT_FOUND: Kind.NOT_FOUND,
    ErrorCode.CANCELLED: Kind.CANCELLED,
    ErrorCode.TIMED_OUT: Kind.GENERATION_TIMEOUT,
    ErrorCode.UNSUPPORTED: Kind.NOT_SUPPORTED,
    ErrorCode.UNKNOWN_TYPE: Kind.NOT_SUPPORTED,
    ErrorCode.SLOW_CLIENT: Kind.TIMEOUT,
}
_NAMES = {  # codes for clients that differ from the daemon's names
    ErrorCode.PROMPT_TOO_LARGE: "context_length_exceeded",
    ErrorCode.FRAME_TOO_LARGE: "request_too_large",
    ErrorCode.TOO_MANY_SESSIONS: "too_many_requests",
    ErrorCode.FORBIDDEN: "daemon_refuses_gateway",
    ErrorCode.CANCELLED: "request_cancelled",
    ErrorCode.TIMED_OUT: "timeout",
    ErrorCode.UNSUPPORTED: "not_supported",
    ErrorCode.UNKNOWN_TYPE: "not_supported",
}


def from_daemon(error: Mapping[str, Any]) -> GatewayError:
    """Make the error from the daemon's `error` event, or from the error of an `eos`."""
    code = BY_CODE.get(str(error.get("code")))
    kind, name = (_kind_of(code), _NAMES.get(code, code.spec.name)) if code is not None else (Kind.SERVER, None)
    detail: Mapping[str, Any] = error.get("detail") or {}
    message = str(error.get("message") or "the daemon gave no reason")
    param = detail.get("field") if kind in (Kind.INVALID, Kind.NOT_SUPPORTED) else None
    made = GatewayError(kind, message, param, name, detail.get("retry_after_ms"))
    if kind is Kind.CONTEXT and "n_tokens" in detail:
        n_tokens, n_ctx = detail["n_tokens"], detail.get("n_ctx_seq", detail.get("limit"))
        given = {"n_prompt_tokens": n_tokens, "n_ctx": n_ctx}
        made.extra = {key: value for key, value in given.items() if value is not None}
        if len(made.extra) == 2:  # LiteLLM and LangChain recognise this error by OpenAI's wording and code
            what = f"input {detail['index']}" if "index" in detail else "the prompt"
            told = f"This model's maximum context length is {n_ctx} tokens, and {what} has {n_tokens}"
            made.message = f"{told} ({made.code})"
    if param == PREFIX:
        made.param = "messages"
        made.message = (
            "`messages`: the answer must continue the last message, but nothing of the requested form begins like it"
        )
    if "queue_position" in detail:
        made.headers.append((b"x-queue-position", str(detail["queue_position"]).encode()))
    return made


def _kind_of(code: ErrorCode) -> Kind:
    return _KINDS.get(code) or (Kind.INVALID if code.spec.side is Side.CLIENT else Kind.SERVER)


_CHAT = {
    ChatCode.TEMPLATE_UNSAFE: Kind.NOT_SUPPORTED,
    ChatCode.UNAVAILABLE: Kind.NOT_SUPPORTED,
    ChatCode.OVERLOADED: Kind.UNAVAILABLE,
    ChatCode.INTERNAL: Kind.SERVER,
}


def from_chat(error: ChatError) -> GatewayError:
    """Make the error for a refusal of the chat layer."""
    return GatewayError(_CHAT.get(error.code, Kind.INVALID), str(error), code=error.code.value)
