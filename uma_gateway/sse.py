"""Server-sent events as bytes (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"


def data(value: Any) -> bytes:
    """One event without a name."""
    return b"data: %b\n\n" % orjson.dumps(value)


def event(name: str, value: Any) -> bytes:
    """One event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(value))
