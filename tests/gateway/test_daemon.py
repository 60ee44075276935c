"""The gateway's client of the daemon."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import pytest

from uma_gateway.daemon import Daemon
from uma_gateway.errors import GatewayError


def test_a_daemon_that_does_not_answer_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `drain` or a `trace` must not be sent twice, and no caller may wait twice the time that it set."""
    monkeypatch.setattr("uma_gateway.daemon.CALL_S", 0.2)
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
            with pytest.raises(GatewayError, match="does not answer"):
                await daemon.cancel("r")
            await daemon.close()

    asyncio.run(work())
    assert asked == ["health", "trace", "cancel"]


def test_more_calls_at_once_than_a_daemon_takes_are_all_answered(tmp_path: Path) -> None:
    """Many users' short operations share a connection, on which a daemon refuses a 17th one in flight."""
    in_flight: set[str] = set()

    async def answer(writer: asyncio.StreamWriter, request_id: str) -> None:
        await asyncio.sleep(0.01)
        in_flight.discard(request_id)
        write(writer, {"id": request_id, "event": "reply", "n_tokens": 1})

    def write(writer: asyncio.StreamWriter, event: dict[str, object]) -> None:
        reply = json.dumps(event).encode()
        writer.write(struct.pack("<I", len(reply)) + reply)

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks = []
        try:
            while True:
                (size,) = struct.unpack("<I", await reader.readexactly(4))
                request_id = json.loads(await reader.readexactly(size))["id"]
                if len(in_flight) >= 16:
                    write(writer, {"id": request_id, "event": "error", "code": "too_many_sessions", "message": "16"})
                    continue
                in_flight.add(request_id)
                tasks.append(asyncio.ensure_future(answer(writer, request_id)))
        except asyncio.IncompleteReadError:
            writer.close()

    async def work() -> list[dict[str, object]]:
        path = str(tmp_path / "d.sock")
        async with await asyncio.start_unix_server(on_connection, path):
            daemon = Daemon(path)
            replies = await asyncio.gather(*(daemon.call("tokenize", text="a") for _ in range(60)))
            await daemon.close()
            return replies

    assert [reply["n_tokens"] for reply in asyncio.run(work())] == [1] * 60
