"""The web pages and their data: `/` (chat), `/dashboard`, `/uma/*`.

Rules: pages come from this package and load nothing from elsewhere; the Content-Security-Policy says so. The
dashboard's data contains nothing of a prompt or an answer.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from importlib import resources
from typing import Any

from uma_core.errors import UmaError
from uma_core.protocol.messages import decode_id
from uma_gateway import sse
from uma_gateway.apis.base import Access, Family, Route
from uma_gateway.body import boolean, integer, text
from uma_gateway.errors import GatewayError, Kind, invalid
from uma_gateway.exchange import Exchange, Headers
from uma_gateway.link import content_of

# between two events of the dashboard; shorter spans are drawn from the times that requests report
EVERY_S = 0.5
CACHE_EVERY = 10  # events between two reads of the cache's budgets: the daemon answers only between two ticks
FILES = {
    "index.html": b"text/html; charset=utf-8",
    "dashboard.html": b"text/html; charset=utf-8",
    "style.css": b"text/css; charset=utf-8",
    "chat.js": b"text/javascript; charset=utf-8",
    "common.js": b"text/javascript; charset=utf-8",
    "dashboard.js": b"text/javascript; charset=utf-8",
    "charts.js": b"text/javascript; charset=utf-8",
    "parts.js": b"text/javascript; charset=utf-8",
    "cluster.html": b"text/html; charset=utf-8",
    "cluster.js": b"text/javascript; charset=utf-8",
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


async def send_file(exchange: Exchange, name: str) -> None:
    await exchange.send_bytes(200, read(name), [(b"content-type", FILES[name]), *PAGE_HEADERS])


async def on_index(exchange: Exchange) -> None:
    """Send the chat to a browser, and to a program the text by which it recognises Ollama's API."""
    exchange.extra_headers.append((b"vary", b"accept"))
    if "text/html" in exchange.header(b"accept"):
        await send_file(exchange, "index.html")
    else:
        await exchange.send_bytes(200, b"Ollama is running", [(b"content-type", b"text/plain; charset=utf-8")])


async def on_dashboard(exchange: Exchange) -> None:
    await send_file(exchange, "dashboard.html")


async def on_file(exchange: Exchange) -> None:
    name = exchange.params["name"]
    if name not in FILES:
        raise GatewayError(Kind.NOT_FOUND, "there is no such file", code="not_found")
    await send_file(exchange, name)


METRICS = (  # shown by the dashboard in addition to the status
    "tokens_generated_total", "prefill_tokens_total", "cache_hits_total", "cache_misses_total",
    "cache_tokens_saved_total", "cache_evictions_total", "cache_bytes", "cache_restore_ms",
)  # fmt: skip


async def overview(exchange: Exchange) -> dict[str, Any]:
    """Return the daemon's status, with the requests in flight. Raises: GatewayError."""
    daemon = exchange.gateway.daemon
    status, rows, metrics = await asyncio.gather(daemon.call("status"), daemon.call("sessions"), daemon.call("metrics"))
    requests = [{name: value for name, value in row.items() if name != "metadata"} for row in rows["sessions"]]
    told = {name: metrics["metrics"].get(name) for name in METRICS}
    return {
        **content_of(status),
        "requests": requests,
        "metrics": told,
        "gateway": {"in_flight": exchange.gateway.n_in_flight},
    }


async def cache_stats(exchange: Exchange) -> dict[str, Any] | None:
    """Return what the prefix cache holds, and its budgets. None: not available now, or not to this gateway."""
    try:
        return dict((await exchange.gateway.daemon.call("cache"))["stats"])
    except GatewayError:
        return None


async def on_status(exchange: Exchange) -> None:
    await exchange.send_json({**await overview(exchange), "cache": await cache_stats(exchange)})


async def on_events(exchange: Exchange) -> None:
    """Send the overview as server-sent events. If the daemon is absent, an event says so and the stream goes on."""
    await exchange.while_connected(_events(exchange))


async def _events(exchange: Exchange) -> None:
    cache: dict[str, Any] | None = None
    asking: asyncio.Task[dict[str, Any] | None] | None = None
    counter = itertools.count()

    async def look() -> dict[str, Any]:
        nonlocal cache, asking
        if next(counter) % CACHE_EVERY == 0 and asking is None:
            asking = asyncio.ensure_future(cache_stats(exchange))
            await asyncio.wait((asking,), timeout=EVERY_S)
        if asking is not None and asking.done():
            cache, asking = asking.result() or cache, None
        at_ms = round(time.time() * 1e3)  # a page that sleeps reads events late
        try:
            return {**await overview(exchange), "cache": cache, "at_ms": at_ms}
        except GatewayError as error:
            return {"state": "unreachable", "reason": error.message, "at_ms": at_ms}

    try:
        await send_events(exchange, look)
    finally:
        if asking is not None:
            asking.cancel()


async def send_events(exchange: Exchange, look: Callable[[], Awaitable[dict[str, Any]]]) -> None:
    """Send the values of `look` as server-sent events, until the client leaves, the gateway stops, or a page must ask
    again.
    """
    await exchange.start_sse()
    t_end = time.monotonic() + exchange.gateway.watch_s
    while exchange.method != "HEAD" and not exchange.gateway.stopping.is_set() and time.monotonic() < t_end:
        await exchange.write(sse.data(await look()))
        await exchange.gateway.sleep(EVERY_S)
    await exchange.finish()


async def on_cancel(exchange: Exchange) -> None:
    body = await exchange.json()
    request_id, conn = text(body, "request_id"), integer(body, "conn")
    if not request_id:
        raise invalid("`request_id` is required", "request_id")
    try:
        decode_id({"id": request_id})
    except UmaError:  # the daemon would answer without an id, so the answer could not be matched to this request
        raise invalid("`request_id` is not an id of a request", "request_id") from None
    await exchange.send_json(content_of(await exchange.gateway.daemon.cancel(request_id, conn)))


async def on_drain(exchange: Exchange) -> None:
    body = await exchange.json()
    timeout_ms = body.get("timeout_ms")
    await exchange.send_json(
        content_of(await exchange.gateway.daemon.call("drain", timeout_ms=timeout_ms, then=text(body, "then")))
    )


async def on_undrain(exchange: Exchange) -> None:
    await exchange.send_json(content_of(await exchange.gateway.daemon.call("undrain")))


async def on_reload(exchange: Exchange) -> None:
    body = await exchange.json()
    await exchange.send_json(content_of(await exchange.gateway.daemon.call("reload", check=boolean(body, "check"))))


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
        Route("POST", "/uma/cancel", on_cancel, Access.ADMIN),
    ),
    error_object,
    ("/uma/", "/pages/"),
)
