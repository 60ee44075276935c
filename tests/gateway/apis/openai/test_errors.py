"""Errors in OpenAI's form."""

from __future__ import annotations

from uma_gateway.apis.openai.errors import error_object
from uma_gateway.errors import GatewayError, Kind


def test_an_error_has_its_extra_facts_beside_its_code() -> None:
    error = GatewayError(Kind.CONTEXT, "too long", "messages", "context_length_exceeded", extra={"n_ctx": 64})
    told = {"message": "too long", "type": "exceed_context_size_error", "param": "messages", "n_ctx": 64}
    assert error_object(error) == {"error": {**told, "code": "context_length_exceeded"}}
