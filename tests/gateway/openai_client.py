"""OpenAI's own client, unmodified."""

from __future__ import annotations

from typing import Any

from tests.gateway.support import GatewayProcess
from tests.late import Late

openai = Late("openai")


def client_of(gateway: GatewayProcess, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", **{"api_key": "none", "max_retries": 0, **options})
