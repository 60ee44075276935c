"""Errors between a conversation and a prompt, each with a code that says who has to act."""

from __future__ import annotations

from enum import Enum


class ChatCode(str, Enum):
    """Stable names; nothing matches on messages."""

    BAD_REQUEST = "bad_request"  # messages, tools or options are malformed
    TOO_DEEP = "too_deep"  # JSON or text nested deeper than the library can follow
    TEMPLATE_FAILED = "template_failed"  # the model's template refuses these messages
    NO_TEMPLATE = "no_template"  # the model has no chat template
    TEMPLATE_UNSAFE = "template_unsafe"  # the template crashed, or ran out of time or memory, when it was tried
    # a schema cannot be enforced; or only in part, although the request asks for all of it
    SCHEMA_UNSUPPORTED = "schema_unsupported"
    UNAVAILABLE = "unavailable"  # the chat library is not built, or has another version
    OVERLOADED = "overloaded"  # there is no memory for this request now
    INTERNAL = "internal"  # a fault of ours or of the library


class ChatError(Exception):
    """A refusal, with its code and a sentence for people."""

    def __init__(self, code: ChatCode, message: str) -> None:
        super().__init__(message)
        self.code = code
