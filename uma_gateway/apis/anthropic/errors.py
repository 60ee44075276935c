"""Errors as Anthropic's clients read them."""

from __future__ import annotations

from typing import Any

from uma_gateway.errors import GatewayError, Kind

_TYPES = {
    Kind.AUTHENTICATION: "authentication_error",
    Kind.PERMISSION: "permission_error",
    Kind.NOT_FOUND: "not_found_error",
    Kind.TOO_LARGE: "request_too_large",
    Kind.RATE_LIMIT: "rate_limit_error",
    Kind.UNAVAILABLE: "overloaded_error",
    Kind.TIMEOUT: "timeout_error",
    Kind.GENERATION_TIMEOUT: "timeout_error",
    Kind.SERVER: "api_error",
    Kind.CANCELLED: "api_error",
}  # the others: invalid_request_error


def error_object(error: GatewayError) -> dict[str, Any]:
    told = {"type": _TYPES.get(error.kind, "invalid_request_error"), "message": _message(error)}
    if "details" in error.extra:
        told["details"] = error.extra["details"]
    return {"type": "error", "error": told, "request_id": error.request_id}


def _message(error: GatewayError) -> str:
    n_tokens, n_ctx = error.extra.get("n_prompt_tokens"), error.extra.get("n_ctx")
    if error.kind is Kind.CONTEXT and n_tokens is not None and n_ctx is not None:
        # Claude Code recognises this wording, and then compacts its conversation
        return f"prompt is too long: {n_tokens} tokens > {n_ctx} maximum"
    return error.message
