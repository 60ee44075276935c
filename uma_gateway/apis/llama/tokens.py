"""llama-server's endpoints about text: `/tokenize`, `/detokenize`, `/apply-template`."""

from __future__ import annotations

from typing import Any

from uma_gateway.apis.openai.request import read_chat, response_format
from uma_gateway.errors import invalid
from uma_gateway.exchange import Exchange
from uma_gateway.fields import array, boolean, text
from uma_gateway.prompting import render


async def on_tokenize(exchange: Exchange) -> None:
    body = await exchange.json()
    content = text(body, "content")
    if not content:
        await exchange.send_json({"tokens": []})
        return
    flags = {name: boolean(body, name, default) for name, default in (("add_special", False), ("parse_special", True))}
    has_pieces = boolean(body, "with_pieces")
    reply = await exchange.gateway.daemon.call("tokenize", content=content, with_pieces=has_pieces, **flags)
    tokens: list[Any] = reply["tokens"]
    if has_pieces:
        tokens = [{"id": token, "piece": piece} for token, piece in zip(tokens, reply["pieces"], strict=True)]
    await exchange.send_json({"tokens": tokens})


async def on_detokenize(exchange: Exchange) -> None:
    body = await exchange.json()
    tokens = array(body, "tokens")
    if not all(type(token) is int for token in tokens):
        raise invalid("`tokens` must hold token ids", "tokens")
    if not tokens:
        await exchange.send_json({"content": ""})
        return
    reply = await exchange.gateway.daemon.call("detokenize", tokens=tokens)
    await exchange.send_json({"content": reply["content"]})


async def on_apply_template(exchange: Exchange) -> None:
    """The prompt that a chat request would have."""
    body = await exchange.json()
    ask = read_chat(body)
    response_format(body, ask.chat)
    prompt = await render(await exchange.gateway.model(), ask.chat)
    written = prompt.fields.get("prompt")
    if written is None:
        reply = await exchange.gateway.daemon.call(
            "apply_template", messages=prompt.fields["messages"], add_generation_prompt=ask.chat.add_generation_prompt
        )
        written = reply["prompt"]
    await exchange.send_json({"prompt": written})
