"""Carries requests from a gateway to the daemons of a cluster: by Ray, or in tests by sockets on one machine."""

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
    """The daemon, its node or the connection is gone: nothing more will arrive."""


class Transport(Protocol):
    """A transport. Its methods run in the gateway's event loop."""

    async def units(self) -> list[Unit]:
        """Return the daemons of the cluster."""

    def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        """Send a generate request and yield its events as they arrive, as JSON.

        Closing the iterator cancels it. Raises: UnitLost.
        """

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        """Run an operation and return its reply. Raises: UnitLost, GatewayError."""

    async def load(self, model: str) -> None:
        """Start a daemon for this model on the node whose memory suits best.

        Raises: GatewayError if it fits on no node.
        """

    async def close(self) -> None: ...
