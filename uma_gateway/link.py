"""A connection to the daemon's Unix socket, for asyncio.

Rules: frames and JSON only, no HTTP. Raises GatewayError for whatever goes wrong with the daemon.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from uma_core import endpoint
from uma_core.errors import UmaError
from uma_core.protocol.framing import FrameReader, encode_frame
from uma_gateway.errors import GatewayError, Kind
from uma_gateway.inbox import Inbox

Event = dict[str, Any]

REPLY_CAP_BYTES = 64 << 20
QUEUE_HIGH = 256  # frames that wait for their reader; beyond this number nothing more is read from the daemon
CONNECT_S = 5.0  # waiting for a place in the daemon's backlog
CONNECT_PAUSE_S = 0.005


class LinkLost(GatewayError):
    """The daemon is not running, or has gone."""


def no_daemon(message: str) -> LinkLost:
    return LinkLost(Kind.UNAVAILABLE, message, code="daemon_unavailable")


class Link(asyncio.Protocol):
    """One connection: frames out, payloads in, in order."""

    def __init__(self) -> None:
        self._frames = FrameReader(REPLY_CAP_BYTES)
        self._inbox = Inbox()
        self._transport: asyncio.Transport  # from connection_made on, which comes first
        self._is_paused = False
        self.sink: Callable[[bytes], bool] | None = None  # see Generation.divert

    @property
    def is_open(self) -> bool:
        return self._inbox.failure is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # a stream socket's

    def data_received(self, data: bytes) -> None:
        payload = self._frames.whole(data)
        # only while the reader waits: otherwise it is still handling earlier events, and this one would overtake them
        if payload is not None and self.sink is not None and self._inbox.is_awaited and self.sink(payload):
            return
        payloads = self._inbox.payloads
        payloads.extend(self._cut(data) if payload is None else (payload,))
        if len(payloads) > QUEUE_HIGH and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._inbox.wake()

    def _cut(self, data: bytes) -> list[bytes]:
        """Return the payloads that are now complete."""
        frames, arrived = self._frames, []
        frames.feed(data)
        try:
            while (payload := frames.next_payload()) is not None:
                arrived.append(payload)
        except UmaError as error:
            self._inbox.payloads.extend(arrived)
            self.end(no_daemon(f"the listener on the socket does not speak the daemon's protocol: {error.message}"))
            return []
        return arrived

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(no_daemon("the daemon hung up" if exc is None else f"the connection to the daemon broke: {exc}"))

    def send(self, message: Mapping[str, Any]) -> None:
        if self._inbox.failure is not None:
            raise self._inbox.failure
        self._transport.write(encode_frame(orjson.dumps(message)))

    async def receive(self) -> list[bytes]:
        """Wait for payloads; return all that have arrived, in order.

        Raises: GatewayError once nothing more can arrive.
        """
        taken = await self._inbox.take()
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return taken

    def end(self, failure: GatewayError) -> None:
        """Hang up; the reader gets `failure` after what has arrived. The first failure counts."""
        self._transport.abort()
        self._inbox.fail(failure)

    def close(self) -> None:
        """Hang up: the daemon cancels the requests of this connection. Idempotent."""
        self.end(no_daemon("the connection to the daemon is closed"))


async def connect(path: str) -> Link:
    """Open a connection to the daemon at `path`, or, if that is "", on the first default path where a daemon listens.

    Raises: GatewayError (503) if no daemon answers, or if the program that answers is not to be trusted.
    """
    paths = (path,) if path else endpoint.places(os.environ)
    for place in paths:
        try:
            return await _open(place)
        except (FileNotFoundError, ConnectionRefusedError):
            continue
        except (OSError, ValueError) as error:
            raise no_daemon(f"the daemon cannot be reached on {place}: {_reason(error)}") from None
    raise no_daemon(f"the daemon cannot be reached on {' or '.join(paths)}: it is not running")


async def _open(path: str) -> Link:
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await _connect(sock, path, loop.time() + CONNECT_S)
        uid = endpoint.stranger(sock, path, os.environ)
        if uid is not None:
            raise ValueError(f"user {uid} listens there, who is not to be trusted ({endpoint.TRUSTED})")
        _, link = await loop.create_unix_connection(Link, sock=sock)
    except BaseException:
        sock.close()
        raise
    return link


async def _connect(sock: socket.socket, path: str, deadline: float) -> None:
    """Connect, retrying until the deadline. A non-blocking Unix socket never waits for a place in the backlog: connect
    fails at once (EAGAIN).
    """
    while True:
        try:
            sock.connect(path)
            return
        except BlockingIOError:
            if asyncio.get_running_loop().time() >= deadline:
                raise
            await asyncio.sleep(CONNECT_PAUSE_S)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, BlockingIOError):
        return "it does not accept connections"
    return getattr(error, "strerror", None) or str(error)


def content_of(reply: Mapping[str, Any]) -> Event:
    """Return a reply without its envelope."""
    return {name: value for name, value in reply.items() if name not in ("id", "event", "type")}


def parse(payload: bytes) -> Event:
    try:
        event = orjson.loads(payload)
    except ValueError:
        raise no_daemon("the daemon sent a frame that is not JSON") from None
    if not isinstance(event, dict):
        raise no_daemon("the daemon sent a frame that is not an object")
    return event
