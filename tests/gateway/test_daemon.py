"""The events of a generate request, as the writers of its answer receive them."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from uma_gateway.daemon import Daemon, Generation
from uma_gateway.errors import GatewayError

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


def test_a_daemon_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    """A `drain` or a `trace` must not be sent twice, and no caller may wait twice the time that it set."""
    asked: list[str] = []

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack("<I", await reader.readexactly(4))
                request = json.loads(await reader.readexactly(size))
                asked.append(request["type"])
                if request["type"] == "health":
                    reply = json.dumps({"id": request["id"], "event": "reply", "is_ready": True}).encode()
                    writer.write(struct.pack("<I", len(reply)) + reply)
        except asyncio.IncompleteReadError:
            writer.close()

    async def work() -> None:
        path = str(tmp_path / "d.sock")
        async with await asyncio.start_unix_server(on_connection, path):
            daemon = Daemon(path)
            assert (await daemon.call("health"))["is_ready"]
            with pytest.raises(GatewayError, match="does not answer"):
                await daemon.call("trace", 0.2)
            await daemon.close()

    asyncio.run(work())
    assert asked == ["health", "trace"]
