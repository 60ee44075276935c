"""The size of a request's text, which its caps and its turn depend on."""

from __future__ import annotations

from typing import Any

from uma_core.protocol.embed import INPUT_FIELDS

INPUTS = ("prompt", "tokens", "messages", "content", *INPUT_FIELDS)  # fields of requests that hold their text


def input_bytes(args: dict[str, Any]) -> int:
    """Size of a request's input as text; token ids count as four bytes, about what they stand for."""
    names = ("prompt", "content", "messages", "suffix", "infill", *INPUT_FIELDS)
    return 4 * len(args.get("tokens") or ()) + sum(
        text_bytes(args[name]) for name in names if args.get(name) is not None
    )


def text_bytes(value: Any) -> int:
    """Size of all strings in a JSON value, names of objects left out."""
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
