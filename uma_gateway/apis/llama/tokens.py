"""llama-server's endpoints for text: `/tokenize`, `/detokenize` and `/apply-template`. The first two, and
`/tokenizer_info`, exist in vLLM's form too.
"""

from __future__ import annotations

from typing import Any

from uma_gateway.apis.openai.request import read_chat, response_format
from uma_gateway.body import array, boolean, text
from uma_gateway.errors import invalid
from uma_gateway.exchange import Exchange
from uma_gateway.prompting import render

MOST_PARTS = 1024  # each takes one call to the daemon


async def on_tokenize(exchange: Exchange) -> None:
    """Tokenize `content`: a text, or an array of texts and token ids. vLLM's clients name their text `prompt`, or send
    `messages`.
    """
    body = await exchange.json()
    if "content" not in body and ("prompt" in body or "messages" in body):
        await _tokenize_as_vllm(exchange, body)
        return
    parts = _parts(body.get("content"))
    flags = {name: boolean(body, name, default) for name, default in (("add_special", False), ("parse_special", True))}
    has_pieces = boolean(body, "with_pieces")
    tokens: list[Any] = []
    for i, part in enumerate(parts):
        flags["add_special"] = flags["add_special"] and i == 0  # only the whole content gets special tokens
        tokens += await _tokens_of(exchange, part, has_pieces, flags)
    await exchange.send_json({"tokens": tokens})


def _parts(content: Any) -> list[str | int]:
    """Return the parts of the content. Raises: GatewayError."""
    if isinstance(content, str) or content is None:
        return [content] if content else []
    parts: list[Any] = content if isinstance(content, list) else [None]
    if not all(type(part) in (str, int) for part in parts):
        raise invalid("`content` must be a string, or an array of strings and token ids", "content")
    if len(parts) > MOST_PARTS:
        raise invalid(f"`content` may hold {MOST_PARTS} texts and token ids", "content")
    return [part for part in parts if part != ""]


async def _tokens_of(exchange: Exchange, part: str | int, has_pieces: bool, flags: dict[str, bool]) -> list[Any]:
    daemon = exchange.gateway.daemon
    if isinstance(part, int):
        if not has_pieces:
            return [part]
        return [{"id": part, "piece": (await daemon.call("detokenize", tokens=[part]))["content"]}]
    reply = await daemon.call("tokenize", content=part, with_pieces=has_pieces, **flags)
    if not has_pieces:
        return list(reply["tokens"])
    return [{"id": token, "piece": piece} for token, piece in zip(reply["tokens"], reply["pieces"], strict=True)]


async def _tokenize_as_vllm(exchange: Exchange, body: dict[str, Any]) -> None:
    """Return the tokens of a `prompt` or of a chat's, in vLLM's form. A chat's include those that the daemon puts
    before a prompt.
    """
    if "prompt" in body:
        prompt, has_special = text(body, "prompt") or "", boolean(body, "add_special_tokens", True)
    else:
        prompt, has_special = await _written(exchange, body), True
    has_pieces = boolean(body, "return_token_strs")
    tokens = await _tokens_of(exchange, prompt, has_pieces, {"add_special": has_special, "parse_special": True})
    model = await exchange.gateway.model()
    ids, pieces = (
        ([token["id"] for token in tokens], [_text_of(token["piece"]) for token in tokens])
        if has_pieces
        else (tokens, None)
    )
    await exchange.send_json({"count": len(ids), "max_model_len": model.n_ctx, "tokens": ids, "token_strs": pieces})


def _text_of(piece: str | list[int]) -> str:
    return piece if isinstance(piece, str) else bytes(piece).decode("utf-8", "replace")


async def on_tokenizer_info(exchange: Exchange) -> None:
    """Return vLLM's description of a tokenizer, from which clients write prompts themselves."""
    model = await exchange.gateway.model(is_new=True)
    props = model.props
    await exchange.send_json(
        {
            "tokenizer_class": "llama.cpp",
            "add_bos_token": props["add_bos"],
            "add_eos_token": props["add_eos"],
            "bos_token": model.special("bos") or None,
            "eos_token": model.special("eos") or None,
            "chat_template": model.chat_template or None,
            "model_max_length": model.n_ctx,
        }
    )


async def on_detokenize(exchange: Exchange) -> None:
    """Return the text as llama-server's `content` and as vLLM's `prompt`: requests of both have the same form."""
    body = await exchange.json()
    tokens = array(body, "tokens")
    if not {int}.issuperset(map(type, tokens)):
        raise invalid("`tokens` must hold token ids", "tokens")
    content = (await exchange.gateway.daemon.call("detokenize", tokens=tokens))["content"]
    await exchange.send_json({"content": content, "prompt": content})


async def on_apply_template(exchange: Exchange) -> None:
    """Return the prompt that a chat request would have."""
    body = await exchange.json()
    await exchange.send_json({"prompt": await _written(exchange, body)})


async def _written(exchange: Exchange, body: dict[str, Any]) -> str:
    """Return the prompt of a chat request, without the BOS that the daemon adds. Raises: GatewayError."""
    ask = read_chat(body)
    response_format(body, ask.chat)
    prompt = await render(exchange, await exchange.gateway.model(is_new=True), ask.chat)
    return str(prompt.fields["prompt"])
