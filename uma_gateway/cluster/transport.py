"""Carries requests from a gateway to the daemons of a cluster. Ray does this; tests use sockets of one machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, Protocol

Event = dict[str, Any]


class Unit(NamedTuple):
    """One daemon: a model on a node. Its name is unique in the cluster for as long as the daemon lives."""

    name: str
    node: str
    model: str  # its name in the cluster's configuration


class UnitLost(Exception):
    """The daemon, its node or the way there is gone: nothing more will come."""


class Transport(Protocol):
    """The methods of a transport. All run in the gateway's event loop."""

    async def units(self) -> list[Unit]:
        """Return the daemons that exist."""

    def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        """Send a generate request and yield its events as they come, as JSON.

        Closing the iterator cancels it. Raises: UnitLost.
        """

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        """Run an operation and return its reply. Raises: UnitLost, GatewayError."""

    async def load(self, model: str) -> None:
        """Start a daemon of this model on the node whose memory fits best.

        Raises: GatewayError if it fits on no node.
        """

    async def close(self) -> None: ...
