"""The gateway's connection to the daemon: an asyncio client of the Unix socket.

Each generate request has a connection of its own: closing it cancels the request, and a client that reads slowly delays
nobody else. All short operations share one more connection that stays open.

Rules: frames and JSON only, no HTTP. Raises GatewayError for whatever goes wrong with the daemon.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import socket
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from uma_core import endpoint
from uma_core.errors import UmaError
from uma_core.protocol.framing import FrameReader, encode_frame
from uma_gateway.errors import GatewayError, Kind, from_daemon
from uma_gateway.inbox import Inbox
from uma_gateway.within import within

log = logging.getLogger(__name__)

Event = dict[str, Any]

REPLY_CAP_BYTES = 64 << 20
QUEUE_HIGH = 256  # frames that wait for their reader; beyond this number nothing more is read from the daemon
CONNECT_S = 5.0  # waiting for a place in the daemon's backlog
CONNECT_PAUSE_S = 0.005
CALL_S = 30.0
LOADED_S = 0.25  # interval between checks whether the model is loaded


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


class Writer(Protocol):
    """Writes messages of a stream that has begun, at once and without a coroutine."""

    can_write: bool  # the client is connected, and there is room for a message
    end: bytes  # end of a message

    def write(self, data: bytes) -> None:
        """Send whole messages without waiting. Only while `can_write`."""


class Source(Protocol):
    """The source of a generation's events: a connection, or a cluster's router. The methods are those of Link."""

    async def receive(self) -> list[bytes]: ...

    def send(self, message: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Generation:
    """One generate request. `close` cancels whatever is unfinished."""

    def __init__(self, link: Source, request_id: str) -> None:
        self.request_id = request_id
        self._link = link
        self._ready: deque[Event] = deque()
        self._failure: Exception | None = None  # ends the events: the daemon's error, or a sink's

    async def events(self) -> list[Event]:
        """Wait for events.

        Raises: GatewayError, for an `error` event too, but only after the events before it were returned.
        """
        if self._ready:
            taken = list(self._ready)
            self._ready.clear()
            return taken
        if self._failure is None:
            payloads = await self._link.receive()
        if self._failure is not None:
            raise self._failure
        events = [event for payload in payloads if (event := parse(payload)).get("event") != "reply"]
        if events and events[-1].get("event") == "error":
            self._failure = from_daemon(events.pop())
            if not events:
                raise self._failure
        return events

    async def first(self) -> Event:
        """Wait for the first event, which shows whether the request was accepted, and leave it in place.

        Raises: GatewayError.
        """
        while not self._ready:
            self._ready.extend(await self.events())
        return self._ready[0]

    def divert(self, encode: Callable[[Event], bytes], writer: Writer) -> None:
        """Write tokens as they arrive, without waking the task that waits for `events`.

        A task switch costs more than all the work on a token, because it takes a turn of the event loop. And after a
        model's step each Python call costs ten times what it costs in a loop, because the processor's caches are cold.
        Events that are not tokens, or cannot be written at once, are returned by `events`. If `encode` raises an error,
        `events` raises it.
        """

        def take(payload: bytes) -> bool:
            try:
                event = orjson.loads(payload)
                if event["event"] != "token" or not writer.can_write:
                    return False
            except (ValueError, LookupError, TypeError):  # `events` reports the error
                return False
            try:
                data = encode(event)
            except Exception as error:  # raised where the events are read
                self._failure = error
                return False
            if data:
                writer.write(data)
            return True

        if isinstance(self._link, Link):
            self._link.sink = take

    def cancel(self, index: int | None = None) -> None:
        """Ask the daemon to end one answer of several, or all; the final event still comes."""
        self._link.send({"type": "cancel", "id": self.request_id, **({} if index is None else {"index": index})})

    def close(self) -> None:
        self._link.close()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


def _stopping() -> GatewayError:
    message = "the gateway is stopping, and ended the answer before it was complete"
    return GatewayError(Kind.UNAVAILABLE, message, code="draining")


class Daemon:
    """See the module's docstring. There is one for the life of the gateway."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._name = secrets.token_hex(6)  # random: no client's request id may equal the id of a call
        self._numbers = itertools.count(1)
        self._control: Link | None = None
        self._connecting = asyncio.Lock()
        self._cancelling = asyncio.Lock()
        self._calls: dict[str, asyncio.Future[Event]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._working: weakref.WeakSet[Link] = weakref.WeakSet()  # connections with a request of their own
        self._is_ending = False

    async def generate(self, fields: Mapping[str, Any], request_id: str) -> Generation:
        """Send a generate request on a connection of its own. Raises: GatewayError."""
        link = await self._connect()
        try:
            link.send({**fields, "id": request_id})
        except BaseException:
            link.close()
            raise
        return Generation(link, request_id)

    async def compute(self, operation: str, request_id: str, fields: Mapping[str, Any]) -> Event:
        """Run an operation that may take long, on a connection of its own: cancelling the caller cancels the operation.

        Raises: GatewayError.
        """
        link = await self._connect()
        try:
            link.send({**fields, "type": operation, "id": request_id})
            while True:
                for payload in await link.receive():
                    event = parse(payload)
                    if event.get("event") == "error":
                        raise from_daemon(event)
                    if event.get("event") == "reply":
                        return event
        finally:
            link.close()

    async def _connect(self) -> Link:
        link = await connect(self.path)
        if self._is_ending:
            link.close()
            raise _stopping()
        self._working.add(link)
        return link

    def end_answers(self) -> None:
        """End what is being computed, because the gateway stops, and begin nothing more. Those who wait for it get an
        error.
        """
        self._is_ending = True
        for link in list(self._working):
            link.end(_stopping())

    async def loaded(self) -> None:
        """Wait until the daemon runs and has a model. Only `health` is asked, because the daemon logs other operations
        as refused until then. Logs one line if there is no daemon yet.
        """
        is_told = False
        while True:
            try:
                if (await self.call("health"))["is_ready"]:
                    return
            except LinkLost as error:
                if not is_told:
                    log.info("%s; the gateway will use it as soon as it answers", error)
                is_told = True
            except GatewayError:
                pass
            await asyncio.sleep(LOADED_S)

    async def call(self, operation: str, timeout_s: float = CALL_S, **fields: Any) -> Event:
        """Run an operation other than generate and return its reply. Fields that are None are left out.

        Raises: GatewayError.
        """
        link = self._control
        if link is not None and link.is_open:
            try:
                return await self._call(operation, timeout_s, fields)
            except LinkLost:
                if link.is_open:  # the daemon is there and does not answer: do not ask twice
                    raise
                # the link was closed because it was idle, or the daemon was restarted: a new connection shows which
        return await self._call(operation, timeout_s, fields)

    async def cancel(self, request_id: str, conn: int | None = None) -> Event:
        """End a request of any connection; `found` says whether there was one. Raises: GatewayError."""
        async with self._cancelling:  # the reply carries the id of the request, not of the call
            return await self._asked(request_id, "cancel", CALL_S, {"conn": conn})

    async def _call(self, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        return await self._asked(f"{self._name}-{next(self._numbers)}", operation, timeout_s, fields)

    async def _asked(self, call_id: str, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        link = await self._open_control()
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            link.send({"type": operation, "id": call_id, **given})
            event = await within(timeout_s, future)
        except asyncio.TimeoutError:
            raise no_daemon("the daemon does not answer") from None
        finally:
            self._calls.pop(call_id, None)
        if event.get("event") == "error":
            raise from_daemon(event)
        return event

    async def _open_control(self) -> Link:
        async with self._connecting:
            if self._control is None or not self._control.is_open:
                self._control = await connect(self.path)
                self._reader = asyncio.get_running_loop().create_task(self._read(self._control))
            return self._control

    async def _read(self, link: Link) -> None:
        """Hand each reply to the call that waits for it, until the connection breaks."""
        try:
            while True:
                for payload in await link.receive():
                    event = parse(payload)
                    future = self._calls.get(str(event.get("id")))
                    if future is not None and not future.done():
                        future.set_result(event)
        except GatewayError as error:
            link.close()
            if self._control is link:
                self._control = None
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(error)

    async def close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=1.0)
