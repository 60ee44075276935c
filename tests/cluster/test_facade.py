"""A cluster as the gateway sees it."""

from __future__ import annotations

import asyncio

from tests.cluster.sockets import Sockets
from tests.daemon.support import WAIT_S
from uma_gateway.cluster.cluster import Cluster
from uma_gateway.cluster.facade import ClusterGateway
from uma_gateway.config import Config
from uma_gateway.keys import Keys


def test_a_gateway_that_starts_loads_no_model_that_nobody_asked_for() -> None:
    transport = Sockets({})

    async def work() -> None:
        gateway = ClusterGateway(
            Config(), Keys("", ""), Cluster(transport, bytes(32)), ["m", "n", "on-demand"], ["on-demand"]
        )
        while set(transport.loads) < {"m", "n"}:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert set(transport.loads) == {"m", "n"}
        asked = asyncio.ensure_future(gateway.serving("on-demand").model())
        while "on-demand" not in transport.loads:
            await asyncio.sleep(0.01)
        asked.cancel()
        await gateway.close()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))
