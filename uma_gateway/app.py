"""The ASGI application: every request goes through it, from the first checks to the log line.

    headers, Host, Origin  ->  route  ->  key, rate  ->  handler  ->  one line in the log

Rules: pure ASGI, because starlette's BaseHTTPMiddleware hides a client's disconnect from handlers. Whatever a handler
raises becomes an error in its family's form. No text of a request is logged.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from uma_gateway.access import check_host, check_origin, cors_headers, preflight_headers
from uma_gateway.apis import FALLBACK, FAMILIES, anthropic
from uma_gateway.apis.base import Access, Family, Route
from uma_gateway.errors import GatewayError, Kind, shortage
from uma_gateway.exchange import ClientGone, Exchange, Receive, Scope, Send
from uma_gateway.gateway import Gateway
from uma_gateway.keys import Caller

log = logging.getLogger(__name__)
access_log = logging.getLogger("uma_gateway.access")

KEY = "uma.exchange"
GIVEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
CLIENT_CLOSED = 499
HEALTH = ("/health", "/v1/health")


class App:
    """`make_gateway` is called once, in the event loop. `more`: families in addition to those of a single daemon."""

    def __init__(self, make_gateway: Callable[[], Gateway], more: tuple[Family, ...] = ()) -> None:
        self.gateway: Gateway | None = None
        self._make = make_gateway
        self._routes = [
            StarletteRoute(route.path, Endpoint(self, family, route), methods=[route.method])
            for family in (*FAMILIES, *more)
            for route in family.routes
        ]
        self._router = Router(self._routes, redirect_slashes=False, default=_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.gateway = self._make()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self.gateway is not None:
                    await self.gateway.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.gateway is not None
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
        request_id = given if GIVEN_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        exchange = Exchange(self.gateway, scope, receive, send, request_id)
        exchange.family = family_of(exchange.path)
        exchange.extra_headers.append((b"x-request-id", request_id.encode()))
        if exchange.family is anthropic.FAMILY:  # its clients read another header
            exchange.extra_headers.append((b"request-id", request_id.encode()))
        scope[KEY] = exchange
        scope["app"] = self  # makes starlette raise an error for a wrong method instead of sending its own response
        try:
            await self._guarded(exchange, scope, receive, send)
        except ClientGone:
            exchange.status = exchange.status or CLIENT_CLOSED
            exchange.facts["client"] = "gone"
        except Exception as error:
            await self._failed(exchange, error)
        finally:
            self._log(exchange)

    async def _guarded(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        gateway, access = exchange.gateway, exchange.gateway.config.access
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        # HTTP/1.0 needs no Host header: old proxies' health checks have none, but requests of browsers always have one
        is_old = not hosts and scope["http_version"] == "1.0"
        if len(hosts) != 1 and not is_old:
            raise GatewayError(Kind.INVALID, "a request needs exactly one Host header", code="bad_host")
        host = "" if is_old else hosts[0].decode("latin-1").strip()
        if not is_old:
            check_host(host, gateway.own_names, access.allowed_hosts)
        origin = exchange.header(b"origin")
        if check_origin(origin, host, access.cors_origins):
            exchange.extra_headers += cors_headers(origin)
            if exchange.method == "OPTIONS":
                wanted = exchange.header(b"access-control-request-headers")
                await exchange.send_bytes(200, b"", preflight_headers(wanted))
                return
        if exchange.method == "OPTIONS":
            await exchange.send_bytes(200, b"", [(b"allow", ", ".join(self._methods_at(exchange.path)).encode())])
            return
        await self._router(scope, receive, send)

    async def _failed(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, HTTPException):  # starlette's error for a method that the path does not accept
            methods = self._methods_at(exchange.path)
            error = GatewayError(Kind.METHOD, "this method is not answered here", code="bad_method")
            error.headers.append((b"allow", ", ".join(methods).encode()))
        error = shortage(error) or error
        if not isinstance(error, GatewayError):
            log.exception("request %s", exchange.request_id, exc_info=error)
            error = GatewayError(Kind.SERVER, "an unexpected error of the gateway", code="internal")
        exchange.facts.setdefault("error", error.code or error.kind.type)
        if not exchange.status:
            await exchange.send_error(error)

    def _methods_at(self, path: str) -> list[str]:
        """Return the methods that this path accepts; each method is a separate route."""
        return sorted(
            {method for route in self._routes if route.path_regex.match(path) for method in route.methods or ()}
        )

    def _log(self, exchange: Exchange) -> None:
        if not exchange.gateway.config.log.access:
            return
        ms = round((time.perf_counter() - exchange.t_start) * 1e3, 1)
        who = exchange.caller.account if hasattr(exchange, "caller") else "-"
        fields = {"request": exchange.request_id, "account": who, "ms": ms, **exchange.facts}
        # a client that waits for a model to load polls, and gets 503 each time
        is_failure = exchange.status >= 500 and exchange.path not in HEALTH
        level = logging.WARNING if is_failure else logging.INFO
        access_log.log(level, "%s %s %d", exchange.method, exchange.path[:200], exchange.status, extra=fields)


class Endpoint:
    """One route as an ASGI application: checks the key and the rate, then calls the handler."""

    def __init__(self, app: App, family: Family, route: Route) -> None:
        self._app = app
        self._family = family
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope[KEY]
        exchange.family = self._family
        exchange.params = scope.get("path_params", {})
        exchange.caller = self._authenticate(exchange)
        if not self._route.is_work:
            await self._route.handler(exchange)
            return
        gateway, caller = exchange.gateway, exchange.caller
        gateway.enter()
        try:
            try:
                caller.enter()
            finally:  # refused clients need the rate headers too
                exchange.extra_headers += caller.rate_headers()
            try:
                await self._route.handler(exchange)
            finally:
                caller.leave()
        finally:
            gateway.leave()

    def _authenticate(self, exchange: Exchange) -> Caller:
        """Find the account of the request. Raises: GatewayError (401, 403)."""
        keys = exchange.gateway.keys
        presented = presented_key(exchange)
        caller = keys.find(presented)
        if self._route.access is Access.PUBLIC:
            return caller or keys.anybody
        if caller is None:
            message = "this key is not known" if presented else "a key is needed: send `Authorization: Bearer KEY`"
            raise GatewayError(Kind.AUTHENTICATION, message, code="invalid_api_key")
        if self._route.access is Access.ADMIN and not caller.key.is_admin:
            raise GatewayError(Kind.PERMISSION, "this key may not administer", code="admin_only")
        return caller


def presented_key(exchange: Exchange) -> str:
    """Return the key of a request, from the header that OpenAI's, Anthropic's or Azure's clients use."""
    scheme, _, token = exchange.header(b"authorization").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        token = exchange.header(b"x-api-key") or exchange.header(b"api-key")
    try:
        return token.strip().encode("latin-1").decode()  # headers are read as Latin-1; most clients write UTF-8
    except UnicodeDecodeError:
        return token.strip()


def family_of(path: str) -> Family:
    """Return the family whose form an error on this path has."""
    fitting = [(len(prefix), family) for family in FAMILIES for prefix in family.prefixes if path.startswith(prefix)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else FALLBACK


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise GatewayError(Kind.NOT_FOUND, f"there is nothing at {scope['path'][:200]}", code="not_found")
