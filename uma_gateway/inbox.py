"""Payloads that have arrived for a reader that has not taken them yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from uma_gateway.errors import GatewayError


class Inbox:
    """Payloads in order, and the failure after which no more come. One reader, in the event loop."""

    def __init__(self) -> None:
        self.payloads: deque[bytes] = deque()  # a caller that appends here calls `wake` afterwards
        self.failure: GatewayError | None = None
        self.is_awaited = False  # the reader is waiting, and there is nothing for it
        self._waiter: asyncio.Future[None] | None = None

    def put(self, payloads: Iterable[bytes]) -> None:
        self.payloads.extend(payloads)
        self.wake()

    def fail(self, failure: GatewayError) -> None:
        """Note that nothing more will arrive. The first failure counts."""
        if self.failure is None:
            self.failure = failure
        self.wake()

    def wake(self) -> None:
        """Make a waiting `take` return what has arrived, which may be nothing."""
        waiter, self._waiter = self._waiter, None
        self.is_awaited = False
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self) -> list[bytes]:
        """Wait for a payload, then take all that have arrived. Raises: GatewayError once nothing more can arrive."""
        if not self.payloads:
            if self.failure is not None:
                raise self.failure
            self._waiter = asyncio.get_running_loop().create_future()
            self.is_awaited = True
            try:
                await self._waiter
            finally:
                self.is_awaited = False
            if not self.payloads and self.failure is not None:
                raise self.failure
        taken = list(self.payloads)
        self.payloads.clear()
        return taken
