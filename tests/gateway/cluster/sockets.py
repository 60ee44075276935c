"""A transport over this machine's sockets, with ways to break it: a cluster's gateway meets the same failures without
Ray.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from uma_core.errors import ErrorCode, UmaError
from uma_gateway.cluster.local import LocalDaemon
from uma_gateway.cluster.transport import Event, Unit, UnitLost
from uma_gateway.within import within


class Sockets:
    """Implements Transport. `cut` a unit: from then on nothing comes from it or reaches it, and nobody is told."""

    def __init__(self, daemons: Mapping[str, LocalDaemon], model: str = "m") -> None:
        self.daemons = dict(daemons)
        self.cut: set[str] = set()
        self.n_refusals = 0  # this many requests are refused
        self.model = model
        self.loads: list[str] = []

    async def units(self) -> list[Unit]:
        return [Unit(name, name, self.model) for name in self.daemons]

    async def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        await self._pass(unit)
        if self.n_refusals:
            self.n_refusals -= 1
            error = UmaError(ErrorCode.OVERLOADED, retry_after_ms=700).to_dict()
            yield [json.dumps({"id": fields["id"], "event": "error", **error}).encode()]
            return
        stream = self.daemons[unit.name].stream(fields)
        try:
            async for payloads in stream:
                await self._pass(unit)
                yield payloads
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        try:
            await within(timeout_s, self._pass(unit))
        except asyncio.TimeoutError:
            raise UnitLost("no answer") from None
        return await self.daemons[unit.name].call(operation, timeout_s, fields)

    async def _pass(self, unit: Unit) -> None:
        while unit.name in self.cut:
            await asyncio.sleep(0.05)

    async def load(self, model: str) -> None:
        self.loads.append(model)

    async def close(self) -> None:
        pass
