"""JSON as it comes from clients: parsed with limits, before anything walks through it."""

from __future__ import annotations

import codecs
from typing import Any

import orjson

from uma_gateway.errors import GatewayError, Kind, invalid


def parse_object(body: bytes, max_depth: int) -> dict[str, Any]:
    """Parse a request's body, which must be an object. Raises: GatewayError (400)."""
    body = body.removeprefix(codecs.BOM_UTF8)  # which PowerShell and .NET write before a text
    if not body.strip():
        raise invalid("the body is empty: send a JSON object")
    try:
        value = orjson.loads(body)
    except ValueError as error:  # nested more than 1,024 deep, too
        raise GatewayError(Kind.INVALID, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    check_depth(value, max_depth)
    return value


def check_depth(value: Any, max_depth: int, param: str | None = None) -> None:
    """Raises: GatewayError (400) where it is nested deeper. Visits every container once."""
    level = [value]
    for _ in range(max_depth + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += [v for v in item.values() if isinstance(v, (dict, list))]
            elif isinstance(item, list):
                inner += [v for v in item if isinstance(v, (dict, list))]
        if not inner:
            return
        level = inner
    raise GatewayError(Kind.INVALID, f"nested more than {max_depth} deep", param, "too_deep")
