"""The pages that only a cluster has: `/cluster` shows the nodes and models live; others return its data, drain one
daemon, and record a trace of all daemons.
"""

from __future__ import annotations

from typing import Any

from uma_gateway.apis.base import Access, Family, Route
from uma_gateway.apis.pages import error_object, send_events, send_file
from uma_gateway.body import text
from uma_gateway.cluster.cluster import Cluster
from uma_gateway.cluster.facade import ClusterGateway
from uma_gateway.cluster.transport import UnitLost
from uma_gateway.errors import GatewayError, Kind, invalid
from uma_gateway.exchange import Exchange
from uma_gateway.link import content_of

TRACE_S_MOST = 60.0


def cluster_of(exchange: Exchange) -> ClusterGateway:
    gateway = exchange.gateway
    assert isinstance(gateway, ClusterGateway)  # only a cluster has these routes
    return gateway


def overview(gateway: ClusterGateway) -> dict[str, Any]:
    cluster = gateway.cluster
    cluster.start()
    return {
        "units": cluster.table(),
        "counts": cluster.counts,
        "waiting": cluster.router.n_waiting,
        "models": gateway.names,
        "in_flight": gateway.n_in_flight,
    }


async def on_page(exchange: Exchange) -> None:
    await send_file(exchange, "cluster.html")


async def on_cluster(exchange: Exchange) -> None:
    await exchange.send_json(overview(cluster_of(exchange)))


async def on_events(exchange: Exchange) -> None:
    async def look() -> dict[str, Any]:
        return overview(cluster_of(exchange))

    await exchange.while_connected(send_events(exchange, look))


async def on_drain(exchange: Exchange) -> None:
    await _ask_unit(exchange, "drain", False)


async def on_undrain(exchange: Exchange) -> None:
    await _ask_unit(exchange, "undrain", True)


async def _ask_unit(exchange: Exchange, operation: str, is_open: bool) -> None:
    cluster: Cluster = cluster_of(exchange).cluster
    name = text(await exchange.json(), "unit")
    if not name:
        raise invalid("`unit` is required: a daemon as /uma/cluster names it", "unit")
    unit = cluster.units.get(name)
    if unit is None:
        raise GatewayError(Kind.NOT_FOUND, f"there is no daemon {name[:100]!r} here", "unit", "not_found")
    if not is_open:
        cluster.router.shut(name)  # at once: the daemon's own report comes only with its next digest
    try:
        reply = await cluster.transport.call(unit, operation, 10.0, {})
    except UnitLost as loss:
        raise GatewayError(Kind.UNAVAILABLE, str(loss), code="daemon_unavailable") from None
    await exchange.send_json(content_of(reply))


async def on_trace(exchange: Exchange) -> None:
    """Record the ticks of all daemons for some seconds, and send them as one file for Perfetto."""
    gateway = cluster_of(exchange)  # before the body is read, which may name another model's gateway
    body = await exchange.json()
    seconds = body.get("seconds", 2.0)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0.01 <= seconds <= TRACE_S_MOST:
        raise invalid(f"`seconds` must be a number from 0.01 to {TRACE_S_MOST:g}", "seconds")
    reply = await gateway.daemon.call("trace", seconds + 30.0, seconds=seconds, format="chrome")
    await exchange.send_json({"traceEvents": reply["traceEvents"], "displayTimeUnit": "ms"})


FAMILY = Family(
    "cluster",
    (
        Route("GET", "/cluster", on_page, Access.PUBLIC),
        Route("GET", "/uma/cluster", on_cluster),
        Route("GET", "/uma/cluster/events", on_events),
        Route("POST", "/uma/cluster/drain", on_drain, Access.ADMIN),
        Route("POST", "/uma/cluster/undrain", on_undrain, Access.ADMIN),
        Route("POST", "/uma/cluster/trace", on_trace, Access.ADMIN),
    ),
    error_object,
    ("/uma/cluster",),
)
