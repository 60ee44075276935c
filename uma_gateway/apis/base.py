"""An API family: a table of routes, and the form of its errors.

One file (or package) per family; apis/__init__.py lists them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, NamedTuple

from uma_gateway.errors import GatewayError
from uma_gateway.exchange import Exchange

Handler = Callable[[Exchange], Awaitable[None]]


class Access(Enum):
    PUBLIC = "public"  # anybody, without a key
    USER = "user"  # any valid key
    ADMIN = "admin"  # a key with `admin: true`


class Route(NamedTuple):
    """`path` is in starlette's syntax. `is_work`: the model answers the request, so it counts against the rate and the
    number of requests in flight.
    """

    method: str
    path: str
    handler: Handler
    access: Access = Access.USER
    is_work: bool = False


class Family(NamedTuple):
    """`prefixes`: paths whose errors are written in this family's form if no route says so; the longest matching prefix
    decides.
    """

    name: str
    routes: tuple[Route, ...]
    error: Callable[[GatewayError], Any]
    prefixes: tuple[str, ...]
