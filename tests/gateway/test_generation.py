"""The events of a generate request, as the writers of its answer receive them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from uma_gateway.errors import GatewayError
from uma_gateway.generation import Generation

TOKEN = {"event": "token", "text": "a"}
ERROR = {"event": "error", "code": "E_ENGINE_001", "message": "the engine failed"}


class Scripted:
    """A Source with known batches."""

    def __init__(self, *batches: list[dict[str, Any]]) -> None:
        self._batches = [[json.dumps(event).encode() for event in batch] for batch in batches]

    async def receive(self) -> list[bytes]:
        return self._batches.pop(0)

    def send(self, message: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("batches", [[[TOKEN], [ERROR]], [[TOKEN, ERROR]]])
def test_an_error_is_raised_after_what_came_before_it(batches: list[list[dict[str, Any]]]) -> None:
    async def work() -> None:
        generation = Generation(Scripted(*batches), "a")
        assert await generation.first() == TOKEN
        assert await generation.events() == [TOKEN]
        with pytest.raises(GatewayError, match="the engine failed"):
            await generation.events()

    asyncio.run(work())


def test_a_request_that_is_refused_has_no_events() -> None:
    async def work() -> None:
        with pytest.raises(GatewayError, match="the engine failed"):
            await Generation(Scripted([ERROR]), "a").first()

    asyncio.run(work())
