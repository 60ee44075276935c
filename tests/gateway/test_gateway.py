"""What the gateway asks the daemon by itself."""

from __future__ import annotations

import asyncio
from typing import Any

from uma_gateway.config import Config
from uma_gateway.daemon import CALL_S, Daemon, Event, no_daemon
from uma_gateway.gateway import Gateway
from uma_gateway.keys import Keys


class Starting(Daemon):
    """A daemon that is not there at first, and loads then. `asked`: what it was asked."""

    def __init__(self) -> None:
        super().__init__("")
        self.asked: list[str] = []
        self.is_asked_for_model = asyncio.Event()

    async def call(self, operation: str, timeout_s: float = CALL_S, **fields: Any) -> Event:
        self.asked.append(operation)
        if operation == "health" and len(self.asked) > 1:
            return {"is_ready": len(self.asked) > 2}
        if operation == "props":
            self.is_asked_for_model.set()
        raise no_daemon("it does not run")


def test_the_model_is_asked_for_once_it_is_loaded():
    """A daemon that loads writes a line about each question that it refuses."""

    async def run() -> list[str]:
        daemon = Starting()
        gateway = Gateway(Config(), Keys("", ""), daemon)
        await asyncio.wait_for(daemon.is_asked_for_model.wait(), 60)
        await gateway.close()
        return daemon.asked

    assert asyncio.run(run()) == ["health", "health", "health", "props"]
