"""`/v1/models`: the one served model, with its context in every field in which clients look for it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from uma_gateway.errors import GatewayError, Kind
from uma_gateway.exchange import Exchange
from uma_gateway.model import Model

OWNER = "uma-serve"
# llama.h: llama_vocab_type
VOCAB_TYPES = {name: n for n, name in enumerate(("none", "spm", "bpe", "wpm", "ugm", "rwkv", "plamo2"))}


def model_object(model: Model, created: int) -> dict[str, Any]:
    facts = model.props["model"]
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": OWNER,
        "aliases": [model.name],
        "tags": [],
        "context_length": model.n_ctx,  # LiteLLM, OpenRouter's clients
        "max_model_len": model.n_ctx,  # vLLM's clients
        "meta": {  # llama-server's
            "vocab_type": VOCAB_TYPES.get(facts["vocab_type"], -1),
            "n_vocab": model.n_vocab,
            "n_ctx": model.n_ctx,
            "n_ctx_train": model.n_ctx_train,
            "n_embd": facts["n_embd"],
            "n_params": facts["n_params"],
            "size": facts["n_bytes"],
        },
    }


def adapter_object(model: Model, name: str, created: int) -> dict[str, Any]:
    """Return a LoRA adapter as a model that requests may name, in vLLM's form."""
    return {**model_object(model, created), "id": name, "parent": model.name}


def anthropic_fields(model: Model, name: str, created: int) -> dict[str, Any]:
    """Return the fields of a model that Anthropic's clients read. They share this path with OpenAI's."""
    return {
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.n_ctx,
        "max_tokens": model.n_ctx,
    }


def is_anthropic(exchange: Exchange) -> bool:
    return bool(exchange.header(b"anthropic-version"))


def ollama_object(model: Model) -> dict[str, Any]:
    """Return the description that Codex looks for beside `data`."""
    facts = model.props["model"]
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": "",
        "size": facts["n_bytes"],
        "digest": model.fingerprint,
        "type": "model",
        "description": facts["description"],
        "tags": [""],
        "capabilities": model.abilities,
        "parameters": "",
        "details": model.details,
    }


async def on_models(exchange: Exchange) -> None:
    models = await exchange.gateway.models()
    data = [_for_client(exchange, model, name) for model in models for name in model.names]
    pages = {"has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"has_more": False}
    told = {"object": "list", "data": data, "models": [ollama_object(model) for model in models]}
    await exchange.send_json({**told, **pages} if is_anthropic(exchange) else told)


async def on_model(exchange: Exchange) -> None:
    name = exchange.params["name"]
    await exchange.send_json(_for_client(exchange, await served(exchange, name), name))


async def served(exchange: Exchange, name: str) -> Model:
    """Return the model of this name, or the one with a LoRA adapter of this name. Raises: GatewayError (404, 503)."""
    model = await exchange.gateway.serving(name).model(is_new=True)
    if name not in model.names:
        message = f"the model {name[:100]!r} is not served here; {model.name!r} is"
        raise GatewayError(Kind.NOT_FOUND, message, "model", "model_not_found")
    return model


def _for_client(exchange: Exchange, model: Model, name: str) -> dict[str, Any]:
    created = exchange.gateway.started_at
    item = model_object(model, created) if name == model.name else adapter_object(model, name, created)
    return {**item, **anthropic_fields(model, name, created)} if is_anthropic(exchange) else item
