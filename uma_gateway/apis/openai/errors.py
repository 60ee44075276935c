"""Errors as OpenAI's clients read them, with llama-server's types."""

from __future__ import annotations

from typing import Any

from uma_gateway.errors import GatewayError


def error_object(error: GatewayError) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": error.kind.type,
            "param": error.param,
            "code": error.code,
            **error.extra,
        }
    }
