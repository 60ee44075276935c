"""Anthropic's endpoints: `/v1/messages` and `/v1/messages/count_tokens`.

Source: Anthropic's API reference, version 2023-06-01.
"""

from __future__ import annotations

from uma_gateway.apis.anthropic.errors import error_object
from uma_gateway.apis.anthropic.messages import on_count_tokens, on_messages
from uma_gateway.apis.base import Family, Route

FAMILY = Family(
    "anthropic",
    (
        Route("POST", "/v1/messages", on_messages, is_work=True),
        Route("POST", "/v1/messages/count_tokens", on_count_tokens),
    ),
    error_object,
    ("/v1/messages",),
)
