"""One generate request to the daemon, and its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from uma_gateway.errors import from_daemon
from uma_gateway.link import Event, Link, parse


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
