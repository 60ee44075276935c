"""Parses JSON from clients, and checks its limits before anything walks through it."""

from __future__ import annotations

import codecs
import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import orjson

from uma_gateway.errors import GatewayError, Kind, invalid
from uma_gateway.large import LARGE_BYTES

NO_MEMORY = "Not enough memory"  # the beginning of orjson's error when memory, not the text, is at fault
_CONTAINERS = frozenset((dict, list))


def parse_object(body: bytes, max_depth: int) -> dict[str, Any]:
    """Parse a request's body, which must be an object. Raises: GatewayError (400); MemoryError."""
    body = body.removeprefix(codecs.BOM_UTF8)  # PowerShell and .NET write it before a text
    if not body.strip():
        raise invalid("the body is empty: send a JSON object")
    try:
        with _uncollected(len(body)):
            value = orjson.loads(body)
    except ValueError as error:  # nested more than 1,024 deep, too
        if str(error).startswith(NO_MEMORY):
            raise MemoryError from None
        raise GatewayError(Kind.INVALID, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    check_depth(value, max_depth)
    return value


@contextlib.contextmanager
def _uncollected(n_bytes: int) -> Iterator[None]:
    """Disable garbage collection while a large text is parsed: the collector would look for cycles repeatedly, although
    JSON has none. With hundreds of thousands of objects that takes twice as long as the parsing, and holds the
    interpreter lock.
    """
    if n_bytes < LARGE_BYTES:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def check_depth(value: Any, max_depth: int, param: str | None = None) -> None:
    """Check how deep a value is nested. Visits every container once. Raises: GatewayError (400)."""
    level = [value]
    for _ in range(max_depth + 1):
        inner: list[Any] = []
        for item in level:
            inside = item.values() if type(item) is dict else item if type(item) is list else ()
            if not _CONTAINERS.isdisjoint(map(type, inside)):  # skips a million token ids at C speed
                inner += [each for each in inside if type(each) in _CONTAINERS]
        if not inner:
            return
        level = inner
    raise GatewayError(Kind.INVALID, f"nested more than {max_depth} deep", param, "too_deep")
