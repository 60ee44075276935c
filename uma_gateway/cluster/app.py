"""The Ray Serve application: a deployment of nodes, one actor on each machine, and the gateway as its ingress.

`serve run uma_gateway.cluster.app:build config=cluster.yaml` starts it; so does `uma-gateway cluster up`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from uma_gateway.app import App
from uma_gateway.cluster import niceness, pages
from uma_gateway.cluster import settings as cluster_settings
from uma_gateway.cluster.cluster import Cluster
from uma_gateway.cluster.facade import ClusterGateway
from uma_gateway.cluster.node import Node, Result
from uma_gateway.cluster.ray_transport import RayTransport
from uma_gateway.cluster.router import RouterSettings
from uma_gateway.cluster.settings import ClusterSettings
from uma_gateway.keys import Keys

log = logging.getLogger("ray.serve")

NODES = "nodes"  # names of the deployments
GATEWAY = "gateway"
APPLICATION = "uma"
HEAD = "node:__internal_head__"  # a resource that Ray gives only to the head
REQUESTS_MOST = 10_000  # at a node; its daemons limit their own queues
EVICT_S = 5.0  # between two searches for idle models
WRONG = {"lost": "it left the cluster"}


class NodeActor:
    """A `Node` as a replica. Every method's first argument is the name of the intended replica."""

    def __init__(self, settings: ClusterSettings) -> None:
        context = ray.get_runtime_context()
        self._name = serve.get_replica_context().replica_id.unique_id
        self._node = Node(settings, self._name, context.get_node_id())
        self._evicting: asyncio.Task[None] | None = None

    async def about(self, name: str) -> Result:
        if self._evicting is None:
            self._evicting = asyncio.get_running_loop().create_task(self._evict())
        return await self._node.about()

    async def _evict(self) -> None:
        while True:
            await asyncio.sleep(EVICT_S)
            self._node.cancel_orphans()
            try:
                await self._node.evict_idle()
            except Exception:  # this model cannot be evicted, but the next idle one may be
                log.exception("a model could not be evicted")

    async def load(self, name: str, model: str) -> Result:
        return await self._node.load(model) if name == self._name else WRONG

    async def call(
        self, name: str, model: str, operation: str, timeout_s: float, fields: dict[str, Any], gateway: str = ""
    ) -> Result:
        if gateway:
            self._node.heard(gateway)
        return await self._node.call(model, operation, timeout_s, fields) if name == self._name else WRONG

    async def stream(self, name: str, model: str, fields: dict[str, Any]) -> AsyncIterator[list[bytes] | str]:
        if name != self._name:
            yield WRONG["lost"]
            return
        stream = self._node.stream(model, fields)
        try:
            async for item in stream:
                yield item
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    async def __del__(self) -> None:
        """Stop the node. Serve calls this when a replica leaves, after its last request has ended."""
        if self._evicting is not None:
            self._evicting.cancel()
        await self._node.stop()


class GatewayActor:
    """The gateway's ASGI application in a replica."""

    def __init__(self, settings: ClusterSettings, nodes: Any) -> None:
        self._settings = settings
        self._nodes = nodes

    def __serve_build_asgi_app__(self) -> App:
        settings = self._settings
        config = cluster_settings.gateway_config(settings)
        logging.getLogger("uma_gateway").setLevel(config.log.level.upper())
        # read here, because Serve reports what is raised here, but not what is raised in `make`
        keys = Keys(config.access.api_key_file, config.access.api_key)

        def make() -> ClusterGateway:
            replicas = {model.name: model.replicas for model in settings.models}
            transport = RayTransport(self._nodes, NODES, replicas, settings.load_s)
            routing = RouterSettings(lost_ns=int(settings.lost_s * 1e9))
            cluster = Cluster(transport, bytes.fromhex(settings.key), routing, settings.load_s)
            # this model is always loaded; it answers requests that name no model
            first = sorted(settings.models, key=lambda model: not model.replicas)
            on_demand = [model.name for model in first if not model.replicas]
            return ClusterGateway(config, keys, cluster, [model.name for model in first], on_demand)

        return App(make, (pages.FAMILY,))


def application(settings: ClusterSettings, n_nodes: int) -> Any:
    """Bind the deployments; give the result to `serve.run`."""
    nodes = serve.deployment(NodeActor).options(
        name=NODES,
        num_replicas=n_nodes,
        max_replicas_per_node=1,
        max_ongoing_requests=REQUESTS_MOST,
        ray_actor_options={"num_cpus": 0.001},
        graceful_shutdown_timeout_s=settings.drain_s + 30.0,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=2.0,
        health_check_timeout_s=max(10.0, settings.lost_s),
        request_router_config=RequestRouterConfig(request_router_class="uma_gateway.cluster.pinned.Pinned"),
    )
    gateway = serve.deployment(serve.ingress()(GatewayActor)).options(
        name=GATEWAY,
        num_replicas=settings.gateways,
        max_ongoing_requests=REQUESTS_MOST,
        # on the head, beside the proxy: the gateway must not end when a node leaves
        ray_actor_options={"num_cpus": 0.001, "resources": {HEAD: 0.001}},
        graceful_shutdown_timeout_s=settings.drain_s + 30.0,
    )
    return gateway.bind(settings, nodes.bind(settings))


def n_alive() -> int:
    return sum(node["Alive"] for node in ray.nodes())


def build(args: dict[str, str]) -> Any:
    """Build the application for `serve run`; `config` is the path of cluster.yaml."""
    settings = cluster_settings.load(args.get("config", ""))
    if not ray.is_initialized():
        niceness.use(os.environ)
        ray.init(address=settings.address or None)
    return application(settings, settings.nodes or n_alive())
