"""Decides which web pages may send requests, and which host names requests may be sent to: guards against DNS rebinding
and cross-site requests. Pure.

A page that a browser loaded from elsewhere can send requests to this machine. The `Origin` header says where the page
came from. If the page's owner has pointed its host name at this machine, the `Host` header has that name. A page cannot
set either header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from uma_gateway.errors import GatewayError, Kind

_HOST = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{0,5})?")  # a port may be empty (RFC 3986, 3.2.3)
ANY = "*"
# headers that pages may read; SDKs in browsers look for those that say whether and when to retry
EXPOSED = b"x-request-id, request-id, x-queue-position, x-queue-wait-ms, retry-after, retry-after-ms, x-should-retry"


def check_host(host: str, own_names: Collection[str], allowed: Collection[str]) -> None:
    """Let addresses, this machine's names and allowed names through. Raises: GatewayError (400, 403)."""
    if not host or not _HOST.fullmatch(host):
        raise GatewayError(Kind.INVALID, "the Host header is missing or malformed", code="bad_host")
    name = host_name(host)
    if ANY in allowed or name in own_names or name in allowed or name == "localhost" or name.endswith(".localhost"):
        return
    try:
        ipaddress.ip_address(name)  # an address cannot be pointed elsewhere
    except ValueError:
        message = f"requests to the name {name!r} are not answered: add it with --allowed-hosts"
        raise GatewayError(Kind.PERMISSION, message, code="host_not_allowed") from None


def host_name(host: str) -> str:
    """Return the name or address in a Host header, without the port or brackets."""
    if host.startswith("["):
        return host[1 : host.index("]")].lower()
    return host.partition(":")[0].lower().rstrip(".")


def check_origin(origin: str, host: str, allowed: Collection[str]) -> bool:
    """Check where a page came from. True: the page has another origin that is allowed. False: there is no page, or it
    is one of ours. Both schemes count as ours, because a proxy may handle TLS in front of the gateway.

    Raises: GatewayError (403).
    """
    if not origin or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return False
    if origin in allowed:
        return True
    message = "pages of this origin may not send requests: add it with --cors-origins"
    raise GatewayError(Kind.PERMISSION, message, code="origin_not_allowed")


def cors_headers(origin: str) -> list[tuple[bytes, bytes]]:
    """Return the CORS headers of an answer to an allowed page."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-expose-headers", EXPOSED),
        (b"vary", b"origin"),
    ]


def preflight_headers(wanted: str) -> list[tuple[bytes, bytes]]:
    """Return the headers for a preflight request of an allowed page. `wanted`: the headers that the page wants to send.
    All are allowed, because OpenAI's and Anthropic's clients for browsers send a dozen of their own.
    """
    return [
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", wanted.encode("latin-1") or b"authorization, content-type"),
        (b"access-control-max-age", b"600"),
    ]
