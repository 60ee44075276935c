"""Throughput of one daemon and of two behind the cluster's router, on the simulated engine: the cost of the router, and
its gain.

Without Ray: the transport uses sockets of this machine. The daemons sleep while they "compute", so two of them fit on
two cores.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from uma_gateway.cluster.cluster import Cluster
from uma_gateway.cluster.facade import ClusterDaemon
from uma_gateway.cluster.local import LocalDaemon
from uma_gateway.cluster.transport import Event, Unit

MODEL = "fake"
N_SEQ = 8
FLAGS = ("--engine", "fake", "--model", "step-20ms", "--calibrate", "off", "--log-level", "error")
START_S = 60.0
RUN_S = 60.0  # five times what a run takes


class Sockets:
    """A transport of daemons on this machine."""

    def __init__(self, daemons: dict[str, LocalDaemon]) -> None:
        self._daemons = daemons

    async def units(self) -> list[Unit]:
        return [Unit(name, name, MODEL) for name in self._daemons]

    def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        return self._daemons[unit.name].stream(fields)

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        return await self._daemons[unit.name].call(operation, timeout_s, fields)

    async def load(self, model: str) -> None:
        """Do nothing: the daemons are running."""

    async def close(self) -> None:
        for daemon in self._daemons.values():
            await daemon.stop()


async def _answer(daemon: ClusterDaemon, number: int, n_tokens: int) -> int:
    fields = {
        "prompt": f"request {number} of many",
        "max_tokens": n_tokens,
        "ignore_eos": True,
        "priority": "interactive",
    }
    async with await daemon.generate(fields, f"r{number}") as generation:
        while True:
            for event in await generation.events():
                if event["event"] == "eos":
                    return int(event["usage"]["completion_tokens"])


async def _rate(n_daemons: int, n_requests: int, n_tokens: int) -> float:
    with tempfile.TemporaryDirectory(prefix="uma-p-") as folder:
        flags = (*FLAGS, "--parallel", str(N_SEQ), "--n-ctx", str(N_SEQ * 1024))
        daemons = {f"n{i}": LocalDaemon(f"{folder}/{i}.sock", flags) for i in range(n_daemons)}
        cluster = Cluster(Sockets(daemons), bytes(32))
        try:
            for each in daemons.values():
                each.start()
            await asyncio.gather(*(each.ready(START_S) for each in daemons.values()))
            cluster.start()
            while len(cluster.of_model(MODEL)) < n_daemons:
                await asyncio.sleep(0.05)
            daemon = ClusterDaemon(cluster, MODEL)
            t0 = time.perf_counter()
            answers = asyncio.gather(*(_answer(daemon, i, n_tokens) for i in range(n_requests)))
            counts = await asyncio.wait_for(answers, RUN_S)
            return sum(counts) / (time.perf_counter() - t0)
        finally:
            await cluster.close()


def rate(n_daemons: int, n_requests: int = 96, n_tokens: int = 50) -> float:
    """Return the tokens a second of this many daemons, with all requests sent at once."""
    return asyncio.run(_rate(n_daemons, n_requests, n_tokens))
