"""The gateway's client of the daemon."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import pytest

from uma_gateway.daemon import Daemon
from uma_gateway.errors import GatewayError


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
