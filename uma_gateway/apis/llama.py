"""llama-server's own endpoints."""

from __future__ import annotations

from typing import Any

from uma_gateway.apis.base import Access, Family, Route
from uma_gateway.errors import GatewayError
from uma_gateway.exchange import Exchange


async def on_health(exchange: Exchange) -> None:
    """200 while requests would be taken, else 503: for load balancers and for whoever waits for the start."""
    health = await exchange.gateway.daemon.call("health")
    is_ready = bool(health["is_ready"])
    await exchange.send_json({"status": "ok" if is_ready else health["state"]}, 200 if is_ready else 503)


async def on_props(exchange: Exchange) -> None:
    model = await exchange.gateway.model(is_new=True)
    props = model.props
    await exchange.send_json(
        {
            "default_generation_settings": {"n_ctx": model.n_ctx, "params": default_params(exchange)},
            "total_slots": props["n_seq_max"],
            "model_alias": model.name,
            "model_path": props["model"]["path"],
            "modalities": {"vision": False, "audio": False},
            "chat_template": props["chat_template"] or "",
            **({"chat_template_tool_use": props["chat_template_tool_use"]} if props["chat_template_tool_use"] else {}),
            "bos_token": model.special("bos"),
            "eos_token": model.special("eos"),
            "build_info": model.system_fingerprint,
            "is_sleeping": False,
        }
    )


def default_params(exchange: Exchange) -> dict[str, Any]:
    answers = exchange.gateway.config.answers
    return {
        "temperature": answers.temperature,
        "top_k": answers.top_k,
        "top_p": answers.top_p,
        "min_p": answers.min_p,
        "n_predict": answers.max_tokens or -1,
    }


def error_object(error: GatewayError) -> dict[str, Any]:
    """llama-server's form: the status is in the body too."""
    return {"error": {"code": error.status, "message": error.message, "type": error.kind.type, **error.extra}}


FAMILY = Family(
    "llama-server",
    (
        Route("GET", "/health", on_health, Access.PUBLIC),
        Route("GET", "/v1/health", on_health, Access.PUBLIC),
        Route("GET", "/props", on_props),
    ),
    error_object,
    (),
)
