"""The parts that every API's embeddings and reranking share: reading inputs from a body, and asking the daemon."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from uma_gateway.body import flag, integer
from uma_gateway.errors import GatewayError, invalid, unsupported
from uma_gateway.exchange import Exchange
from uma_gateway.generate import note_end, priority_fields
from uma_gateway.link import Event
from uma_gateway.plain import plain_prompt

EUCLIDEAN, PLAIN = 2, -1  # values of llama-server's `embd_normalize`


async def ask(
    exchange: Exchange,
    operation: str,
    body: dict[str, Any],
    fields: Mapping[str, Any],
    names: Mapping[str, str] = MappingProxyType({}),
) -> Event:
    """Ask the daemon on a separate connection: if the client leaves, the work is cancelled. `names`: the client's names
    for the daemon's fields, if they differ. Raises: GatewayError.
    """
    who = {"account": exchange.caller.account, **priority_fields(exchange, body)}
    if body.get("timeout_ms") is not None:
        who["timeout_ms"] = body["timeout_ms"]
    try:
        reply = await exchange.gateway.daemon.compute(operation, exchange.request_id, {**fields, **who})
    except GatewayError as error:
        error.rename(names)
        raise
    note_end(exchange, reply)
    return reply


def options_of(body: dict[str, Any]) -> dict[str, Any]:
    """Read the vector options that all APIs share."""
    options: dict[str, Any] = {"encoding": "base64"}
    dimensions = integer(body, "dimensions")
    if dimensions is not None:
        options["dimensions"] = dimensions
    truncate = wants_cut(body)
    if truncate is not None:
        options["truncate"] = truncate
    norm = integer(body, "embd_normalize")
    if norm not in (None, EUCLIDEAN, PLAIN):
        raise unsupported("`embd_normalize` can be 2 (Euclidean) or -1 (none)", "embd_normalize")
    if norm is not None:
        options["normalize"] = norm == EUCLIDEAN
    return options


def wants_cut(body: Mapping[str, Any]) -> bool | None:
    """Whether an input that is too long for the model is truncated. vLLM's clients ask for it with a number of tokens,
    of which -1 means the model's limit. None: the request does not say. Raises: GatewayError.
    """
    most = integer(body, "truncate_prompt_tokens", -1)
    if most is not None and most >= 0:
        raise unsupported(
            "`truncate_prompt_tokens` can be -1: a text is cut to what the model takes", "truncate_prompt_tokens"
        )
    wish = flag(body, "truncate")
    return True if wish is None and most is not None else wish


def inputs_of(body: Mapping[str, Any], name: str) -> Any:
    """Return texts and token ids in the daemon's form. A text may be an object, as llama-server's clients write it: a
    `prompt_string`, or a `content` of parts. Raises: GatewayError.
    """
    given = body[name]
    return [_plain(item, name) for item in given] if isinstance(given, list) else _plain(given, name)


def _plain(item: Any, name: str) -> Any:
    if not isinstance(item, dict) or "content" not in item:
        return plain_prompt(item, name)
    parts = item["content"]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise invalid(f"`{name}.content` must be an array of parts", name)
    if any(part.get("type") in ("image_url", "input_audio", "input_video") for part in parts):
        raise unsupported(f"`{name}.content` can have parts of text only: the daemon serves text", name)
    if not all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts):
        raise invalid(f"each part of `{name}.content` must have a `type` and a `text`", name)
    return "".join(part["text"] for part in parts)


def unpacked(data: str) -> list[float]:
    """Unpack little-endian f32 numbers from base64."""
    raw = base64.b64decode(data)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def usage(reply: Event) -> dict[str, int]:
    """Return the token counts in OpenAI's form."""
    n = int(reply["usage"]["prompt_tokens"])
    return {"prompt_tokens": n, "total_tokens": n}


def documents_of(body: dict[str, Any], name: str) -> list[str]:
    """Read texts, or objects with a `text`, as Jina's and Cohere's clients send them. Raises: GatewayError."""
    given = body.get(name)
    if not isinstance(given, list) or not given:
        raise invalid(f"`{name}` must be an array of texts that is not empty", name)
    texts: list[Any] = [item.get("text") if isinstance(item, dict) else item for item in given]
    for i, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise invalid(f"`{name}[{i}]` must be a text that is not empty", f"{name}[{i}]")
    return texts
