"""The web pages and what feeds them: `/` (chat), `/dashboard`, `/uma/*`.

Rules: pages come from this package and load nothing from elsewhere; the Content-Security-Policy says so. Nothing of a
prompt or an answer is in what feeds the dashboard.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from importlib import resources
from typing import Any

from uma_gateway import sse
from uma_gateway.apis.base import Access, Family, Route
from uma_gateway.errors import GatewayError, Kind
from uma_gateway.exchange import Exchange, Headers
from uma_gateway.fields import boolean, text

EVERY_S = 1.0  # between two events of the dashboard
FILES = {
    "index.html": b"text/html; charset=utf-8",
    "dashboard.html": b"text/html; charset=utf-8",
    "style.css": b"text/css; charset=utf-8",
    "chat.js": b"text/javascript; charset=utf-8",
    "common.js": b"text/javascript; charset=utf-8",
    "dashboard.js": b"text/javascript; charset=utf-8",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Headers = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


@lru_cache(maxsize=len(FILES))
def read(name: str) -> bytes:
    return (resources.files("uma_gateway") / "pages" / name).read_bytes()


async def _send(exchange: Exchange, name: str) -> None:
    await exchange.send_bytes(200, read(name), [(b"content-type", FILES[name]), *PAGE_HEADERS])


async def on_index(exchange: Exchange) -> None:
    await _send(exchange, "index.html")


async def on_dashboard(exchange: Exchange) -> None:
    await _send(exchange, "dashboard.html")


async def on_file(exchange: Exchange) -> None:
    name = exchange.params["name"]
    if name not in FILES:
        raise GatewayError(Kind.NOT_FOUND, "there is no such file", code="not_found")
    await _send(exchange, name)


async def overview(exchange: Exchange) -> dict[str, Any]:
    """The daemon's status, with the requests in flight."""
    daemon = exchange.gateway.daemon
    status, rows = await asyncio.gather(daemon.call("status"), daemon.call("sessions"))
    metrics = (await daemon.call("metrics"))["metrics"]
    totals = {name: metrics.get(name) for name in ("tokens_generated_total", "prefill_tokens_total")}
    return {**_inner(status), "requests": rows["sessions"], "totals": totals, "gateway": {"in_flight": exchange.gateway.n_in_flight}}


def _inner(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name not in ("id", "event", "type")}


async def on_status(exchange: Exchange) -> None:
    await exchange.send_json(await overview(exchange))


async def on_events(exchange: Exchange) -> None:
    """The overview once a second, as server-sent events, until the client goes. A daemon that is away is told, not an end."""
    await exchange.while_connected(_events(exchange))


async def _events(exchange: Exchange) -> None:
    await exchange.start_sse()
    while True:
        try:
            value = await overview(exchange)
        except GatewayError as error:
            value = {"state": "unreachable", "reason": error.message}
        await exchange.write(sse.data(value))
        await asyncio.sleep(EVERY_S)


async def on_drain(exchange: Exchange) -> None:
    body = await exchange.json()
    timeout_ms = body.get("timeout_ms")
    await exchange.send_json(_inner(await exchange.gateway.daemon.call("drain", timeout_ms=timeout_ms, then=text(body, "then"))))


async def on_undrain(exchange: Exchange) -> None:
    await exchange.send_json(_inner(await exchange.gateway.daemon.call("undrain")))


async def on_reload(exchange: Exchange) -> None:
    body = await exchange.json()
    await exchange.send_json(_inner(await exchange.gateway.daemon.call("reload", check=boolean(body, "check"))))


def error_object(error: GatewayError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message, **error.extra}}


FAMILY = Family(
    "uma",
    (
        Route("GET", "/", on_index, Access.PUBLIC),
        Route("GET", "/dashboard", on_dashboard, Access.PUBLIC),
        Route("GET", "/pages/{name}", on_file, Access.PUBLIC),
        Route("GET", "/uma/status", on_status),
        Route("GET", "/uma/events", on_events),
        Route("POST", "/uma/drain", on_drain, Access.ADMIN),
        Route("POST", "/uma/undrain", on_undrain, Access.ADMIN),
        Route("POST", "/uma/reload", on_reload, Access.ADMIN),
    ),
    error_object,
    ("/uma/", "/pages/"),
)
