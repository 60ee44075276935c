"""The gateway's client of the daemon.

Each generate request has a connection of its own: closing it cancels the request, and a client that reads slowly delays
nobody else. All short operations share one more connection that stays open.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import weakref
from collections.abc import Coroutine, Mapping
from typing import Any

from uma_gateway.errors import GatewayError, Kind, from_daemon
from uma_gateway.generation import Generation
from uma_gateway.link import Event, Link, LinkLost, connect, no_daemon, parse
from uma_gateway.within import within

log = logging.getLogger(__name__)

CALL_S = 30.0
N_CALLS = 16  # at once on one connection: the default of the daemon's `ipc.max_in_flight`, which refuses more
LOADED_S = 0.25  # interval between checks whether the model is loaded


def _stopping() -> GatewayError:
    message = "the gateway is stopping, and ended the answer before it was complete"
    return GatewayError(Kind.UNAVAILABLE, message, code="draining")


async def _answered(timeout_s: float, work: Coroutine[Any, Any, Event]) -> Event:
    """Wait for a reply, for at most `timeout_s`, including the wait for a turn. Raises: GatewayError."""
    try:
        return await within(timeout_s, work)
    except asyncio.TimeoutError:
        raise no_daemon("the daemon does not answer") from None


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
        self._turns = asyncio.Semaphore(N_CALLS)
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
        return await _answered(CALL_S, self._cancel(request_id, conn))

    async def _cancel(self, request_id: str, conn: int | None) -> Event:
        async with self._cancelling:  # the reply carries the id of the request, not of the call
            return await self._asked(request_id, "cancel", {"conn": conn})

    async def _call(self, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        return await _answered(timeout_s, self._ask_in_turn(operation, fields))

    async def _ask_in_turn(self, operation: str, fields: Mapping[str, Any]) -> Event:
        async with self._turns:
            return await self._asked(f"{self._name}-{next(self._numbers)}", operation, fields)

    async def _asked(self, call_id: str, operation: str, fields: Mapping[str, Any]) -> Event:
        link = await self._open_control()
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            link.send({"type": operation, "id": call_id, **given})
            event = await future
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
