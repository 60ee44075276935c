"""LM Studio's endpoints: its two lists of models, which report the context of a loaded model, and its names for
OpenAI's endpoints.

Source: LM Studio's documentation of its REST API, v0 (/api/v0) and v1 (/api/v1). Its own chat endpoint (/api/v1/chat)
is not implemented: programs that read these lists chat in OpenAI's form.
"""

from __future__ import annotations

from typing import Any

from uma_gateway.apis.base import Family, Route
from uma_gateway.apis.ollama import on_managing
from uma_gateway.apis.openai.chat import on_chat
from uma_gateway.apis.openai.completions import on_completions
from uma_gateway.apis.openai.embeddings import on_embeddings
from uma_gateway.apis.openai.errors import error_object
from uma_gateway.apis.openai.models import OWNER, served
from uma_gateway.exchange import Exchange
from uma_gateway.model import Model


def v0_object(model: Model, name: str) -> dict[str, Any]:
    """Describe a model. `max_context_length` is the context of a request, because no client can load the model with a
    longer one.
    """
    details = model.details
    return {
        "id": name,
        "object": "model",
        "type": "llm" if model.has_completion else "embeddings",
        "publisher": OWNER,
        "arch": details["family"],
        "compatibility_type": details["format"],
        "quantization": details["quantization_level"],
        "state": "loaded",
        "max_context_length": model.n_ctx,
        "loaded_context_length": model.n_ctx,
        "capabilities": ["tool_use"] if "tools" in model.abilities else [],
    }


def v1_object(model: Model, name: str) -> dict[str, Any]:
    facts, details = model.props["model"], model.details
    found = {
        "type": "llm" if model.has_completion else "embedding",
        "publisher": OWNER,
        "key": name,
        "display_name": name,
        "quantization": {
            "name": details["quantization_level"],
            "bits_per_weight": round(8 * facts["n_bytes"] / max(1, facts["n_params"]), 1),
        },
        "size_bytes": facts["n_bytes"],
        "params_string": details["parameter_size"],
        "loaded_instances": [{"id": name, "config": {"context_length": model.n_ctx}}],
        "max_context_length": model.n_ctx,
        "format": details["format"],
    }
    if model.has_completion:
        can = {"vision": False, "trained_for_tool_use": "tools" in model.abilities}
        found |= {"architecture": details["family"], "capabilities": can, "description": facts["description"]}
    return found


async def on_v0_models(exchange: Exchange) -> None:
    data = [v0_object(model, name) for model, name in await _listed(exchange)]
    await exchange.send_json({"object": "list", "data": data})


async def on_v0_model(exchange: Exchange) -> None:
    name = exchange.params["name"]
    await exchange.send_json(v0_object(await served(exchange, name), name))


async def on_v1_models(exchange: Exchange) -> None:
    await exchange.send_json({"models": [v1_object(model, name) for model, name in await _listed(exchange)]})


async def on_load(exchange: Exchange) -> None:
    """Answer that the model is loaded: clients load a model before they use it, and the served one is always loaded."""
    name = str((await exchange.json()).get("model") or "")
    kind = v1_object(await served(exchange, name), name)["type"]
    await exchange.send_json({"type": kind, "instance_id": name, "load_time_seconds": 0, "status": "loaded"})


async def _listed(exchange: Exchange) -> list[tuple[Model, str]]:
    return [(model, name) for model in await exchange.gateway.models() for name in model.names]


FAMILY = Family(
    "lmstudio",
    (
        Route("GET", "/api/v0/models", on_v0_models),
        Route("GET", "/api/v0/models/{name:path}", on_v0_model),
        Route("POST", "/api/v0/chat/completions", on_chat, is_work=True),
        Route("POST", "/api/v0/completions", on_completions, is_work=True),
        Route("POST", "/api/v0/embeddings", on_embeddings, is_work=True),
        Route("GET", "/api/v1/models", on_v1_models),
        Route("POST", "/api/v1/models/load", on_load),
        *(Route("POST", f"/api/v1/models/{name}", on_managing) for name in ("unload", "download")),
    ),
    error_object,
    ("/api/v0/", "/api/v1/"),
)
