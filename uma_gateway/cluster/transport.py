"""What carries requests from a gateway to the daemons of a cluster. Ray does; tests use sockets of one machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, Protocol

Event = dict[str, Any]


class Unit(NamedTuple):
    """One daemon: a model on a node. Its name is unique in the cluster for as long as the daemon lives."""

    name: str
    node: str
    model: str  # as the cluster's configuration names it


class UnitLost(Exception):
    """The daemon, its node or the way there is gone: nothing more will come."""


class Transport(Protocol):
    """In the gateway's event loop."""

    async def units(self) -> list[Unit]:
        """Which daemons there are."""

    def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        """Send a generate request and yield its events as they come, as JSON.

        Closing the iterator cancels it. Raises: UnitLost.
        """

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        """Run an operation and give its reply. Raises: UnitLost, GatewayError."""

    async def load(self, model: str) -> None:
        """Have a daemon of this model started where its memory fits best.

        Raises: GatewayError where it fits nowhere.
        """

    async def close(self) -> None: ...
