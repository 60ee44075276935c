"""The size of a request's text: it is checked against the caps and decides the request's turn."""

from __future__ import annotations

from typing import Any

from uma_core.protocol.embed import INPUT_FIELDS

# a large request's input, which stays in its source (`large.digest`)
INPUTS = ("prompt", "tokens", "messages", "content", *INPUT_FIELDS)


def input_bytes(args: dict[str, Any]) -> int:
    """Return the size of a request's input as text; a token id counts as four bytes, about the text of a token."""
    names = ("prompt", "content", "messages", "suffix", "infill", *INPUT_FIELDS)
    return 4 * len(args.get("tokens") or ()) + sum(
        text_bytes(args[name]) for name in names if args.get(name) is not None
    )


def text_bytes(value: Any) -> int:
    """Return the size of all strings in a JSON value; an integer counts as a token id. Names in objects are not
    counted.
    """
    n_bytes, stack = 0, [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            n_bytes += len(item.encode())
        elif type(item) is int:
            n_bytes += 4
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item
    return n_bytes
