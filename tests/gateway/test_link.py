"""Frames from the daemon, and what is said of a daemon that is not there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from uma_core.protocol.framing import encode_frame
from uma_gateway.link import QUEUE_HIGH, Link, LinkLost, connect, content_of, parse


class Wire:
    """A transport that remembers what was done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.done.append(name)


def linked() -> tuple[Link, Wire]:
    link, wire = Link(), Wire()
    link.connection_made(wire)  # type: ignore[arg-type]
    return link, wire


@pytest.mark.parametrize("n", [1, 3, 1000])
def test_frames_are_whole_however_their_bytes_arrive(n: int) -> None:
    async def work() -> None:
        link, _ = linked()
        data = encode_frame(b"{}") + encode_frame(b'{"a": 1}')
        for begin in range(0, len(data), n):
            link.data_received(data[begin : begin + n])
        assert await link.receive() == [b"{}", b'{"a": 1}']

    asyncio.run(work())


def test_what_came_before_a_loss_is_read_first() -> None:
    async def work() -> None:
        link, _ = linked()
        link.data_received(encode_frame(b"{}"))
        link.connection_lost(None)
        assert not link.is_open and await link.receive() == [b"{}"]
        with pytest.raises(LinkLost, match="hung up"):
            await link.receive()
        with pytest.raises(LinkLost, match="hung up"):
            link.send({})

    asyncio.run(work())


def test_a_listener_that_speaks_otherwise_is_told() -> None:
    async def work() -> None:
        link, wire = linked()
        link.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(LinkLost, match="does not speak"):
            await link.receive()
        assert "abort" in wire.done

    asyncio.run(work())


def test_a_daemon_is_not_read_faster_than_its_events_are_taken() -> None:
    async def work() -> None:
        link, wire = linked()
        for _ in range(QUEUE_HIGH + 2):
            link.data_received(encode_frame(b"{}"))
        assert wire.done == ["pause_reading"]
        assert len(await link.receive()) == QUEUE_HIGH + 2 and wire.done[1:] == ["resume_reading"]

    asyncio.run(work())


def test_the_path_of_a_daemon_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "none.sock")
    with pytest.raises(LinkLost, match=r"none\.sock: it is not running"):
        asyncio.run(connect(path))


@pytest.mark.parametrize("payload", [b"{", b"[]", b"", b"1"])
def test_a_payload_that_is_no_event(payload: bytes) -> None:
    with pytest.raises(LinkLost):
        parse(payload)


def test_a_reply_without_its_envelope() -> None:
    assert content_of({"id": 1, "event": "reply", "type": "status", "a": 2}) == {"a": 2}
