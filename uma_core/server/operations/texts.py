"""The text operations: `tokenize`, `detokenize`, `count`, `prefix_hashes`, `apply_template`. They run on the intake's
threads.

A reply may hold a token for each byte of a prompt. It is encoded here, in slices: one call of the JSON encoder holds
the GIL until it returns, and the compute thread would wait for it between two tokens of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from uma_core.cache.digest import page_hashes
from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.fields import bad_field
from uma_core.protocol.messages import to_input
from uma_core.server.io.ports import Reading
from uma_core.server.operations.prompt import apply_template, encode
from uma_core.types import Request, TokenId

SLICE = 2048  # items or characters per call of the JSON encoder: some tens of microseconds

Fields = dict[str, Any]


def tokenize(text: Reading, args: Fields) -> Fields:
    tokens = text.tokenize(args["content"], args["add_special"], args["parse_special"])
    return {"tokens": tokens, **_pieces(text, args, tokens, True)}


def detokenize(text: Reading, args: Fields) -> Fields:
    """Raises: BAD_REQUEST for a token that the model does not have."""
    n_vocab = text.n_vocab
    for token in args["tokens"]:
        if token >= n_vocab:
            raise bad_field("tokens", f"must contain only ids from 0 to {n_vocab - 1}")
    content = b"".join(text.piece(token, args["unparse_special"]) for token in args["tokens"])
    return {
        "content": content.decode("utf-8", "replace"),
        **_pieces(text, args, args["tokens"], args["unparse_special"]),
    }


def count(text: Reading, args: Fields) -> Fields:
    """Return what `generate` would report as `prompt_tokens` for the same input. Raises: what `encode` raises."""
    return {"n_tokens": len(encode(text, Request(id="", **to_input(args))).tokens)}


def prefix_hashes(text: Reading, args: Fields) -> Fields:
    """Return the hashes of the tokens that `generate` would read for the same input.

    Raises: BAD_REQUEST, and what `encode` raises.
    """
    key = to_key(args["key"])
    tokens = encode(text, Request(id="", **to_input(args))).tokens
    return {"n_tokens": len(tokens), "hashes": page_hashes(tokens, key)}


def to_key(given: str) -> bytes:
    """Parse the key of the hashes. Raises: BAD_REQUEST."""
    try:
        return bytes.fromhex(given)
    except ValueError:
        raise bad_field("key", "must be hexadecimal digits, two per byte") from None


def template(text: Reading, args: Fields) -> Fields:
    """Apply the chat template. Raises: TEMPLATE_FAILED."""
    return {"prompt": apply_template(text, list(args["messages"]), args["add_generation_prompt"])}


WORK: dict[str, Callable[[Reading, Fields], Fields]] = {
    "tokenize": tokenize,
    "detokenize": detokenize,
    "count": count,
    "prefix_hashes": prefix_hashes,
    "apply_template": template,
}


def answer(op: str, args: Fields, cap_bytes: int, text: Reading) -> bytes:
    """Carry out an operation. Returns the reply's fields as JSON, without braces.

    Raises: PROMPT_TOO_LARGE if they exceed `cap_bytes`, and what the operation raises.
    """
    encoded = fields_json(WORK[op](text, args))
    if len(encoded) > cap_bytes:
        message = f"the answer has {len(encoded)} bytes, the cap is {cap_bytes}: split the request"
        raise UmaError(ErrorCode.PROMPT_TOO_LARGE, message, n_bytes=len(encoded), limit=cap_bytes)
    return encoded


def fields_json(fields: Fields) -> bytes:
    """Encode strings and lists in slices."""
    parts: list[str] = []
    for name, value in fields.items():
        parts += (",", json.dumps(name), ":") if parts else (json.dumps(name), ":")
        parts += _value_json(value)
    return "".join(parts).encode("utf-8", "replace")


def _value_json(value: Any) -> Iterator[str]:
    if not isinstance(value, str | list):
        yield _dumps(value)
        return
    ends = '""' if isinstance(value, str) else "[]"
    yield ends[0]
    for i in range(0, len(value), SLICE):
        if i and isinstance(value, list):
            yield ","
        yield _dumps(value[i : i + SLICE])[1:-1]
    yield ends[1]


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pieces(text: Reading, args: Fields, tokens: Sequence[TokenId], unparse_special: bool) -> Fields:
    return {"pieces": [_shown(text.piece(token, unparse_special)) for token in tokens]} if args["with_pieces"] else {}


def _shown(piece: bytes) -> str | list[int]:
    """Return the token's text, or its bytes if they are not valid UTF-8 on their own."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)
