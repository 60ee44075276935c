"""Errors in Anthropic's form."""

from __future__ import annotations

import pytest

from uma_gateway.apis.anthropic.errors import error_object
from uma_gateway.errors import GatewayError, Kind


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Kind.INVALID, "invalid_request_error"),
        (Kind.NOT_SUPPORTED, "invalid_request_error"),
        (Kind.RATE_LIMIT, "rate_limit_error"),
        (Kind.UNAVAILABLE, "overloaded_error"),
        (Kind.SERVER, "api_error"),
        (Kind.GENERATION_TIMEOUT, "timeout_error"),
    ],
)
def test_kinds_have_anthropic_s_names(kind: Kind, name: str) -> None:
    error = GatewayError(kind, "why")
    error.request_id = "req_1"
    assert error_object(error) == {"type": "error", "error": {"type": name, "message": "why"}, "request_id": "req_1"}


def test_claude_code_reads_that_its_conversation_is_too_long() -> None:
    """It compacts the conversation then."""
    extra = {"n_prompt_tokens": 90, "n_ctx": 64}
    told = error_object(GatewayError(Kind.CONTEXT, "why", extra=extra))["error"]
    assert told == {"type": "invalid_request_error", "message": "prompt is too long: 90 tokens > 64 maximum"}
    assert error_object(GatewayError(Kind.CONTEXT, "why", extra={"n_ctx": 64}))["error"]["message"] == "why"
