"""`/v1/embeddings`. Texts or token ids, one or several; numbers, or base64, which the SDK requests by default."""

from __future__ import annotations

from typing import Any

from uma_gateway.body import text
from uma_gateway.embedding import ask, inputs_of, options_of, unpacked, usage
from uma_gateway.errors import invalid
from uma_gateway.exchange import Exchange
from uma_gateway.fields import model_name

FORMATS = ("float", "base64")


async def on_embeddings(exchange: Exchange) -> None:
    body = await exchange.json()
    if body.get("input") is None:
        raise invalid("`input` is required", "input")
    form = text(body, "encoding_format") or "float"
    if form not in FORMATS:
        raise invalid(f"`encoding_format` must be one of {', '.join(FORMATS)}", "encoding_format")
    await exchange.while_connected(_answer(exchange, body, form))


async def _answer(exchange: Exchange, body: dict[str, Any], form: str) -> None:
    model = await exchange.gateway.model()
    reply = await ask(exchange, "embed", body, {"input": inputs_of(body, "input"), **options_of(body)})
    read = unpacked if form == "float" else str
    data = [{"object": "embedding", "index": i, "embedding": read(item)} for i, item in enumerate(reply["embeddings"])]
    await exchange.send_json({"object": "list", "data": data, "model": model_name(body, model), "usage": usage(reply)})
