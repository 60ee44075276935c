"""Reads fields of a request's body by their type. A field that is null counts as absent.

Raises: GatewayError that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uma_gateway.errors import invalid

LEAST, MOST = -(1 << 63), (1 << 64) - 1  # integers that other readers and writers of JSON accept


def integer(body: Mapping[str, Any], name: str, least: int = LEAST, most: int = MOST) -> int | None:
    """Read a whole number in its range; None if it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():  # JavaScript has no other numbers
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"`{name}` must be an integer", name)
    if not LEAST <= value <= MOST:
        raise invalid(f"`{name}` must be an integer of at most 64 bits", name)
    if not least <= value <= most:
        told = f"must be at least {least}" if most == MOST else f"must be from {least} to {most}"
        raise invalid(f"`{name}` {told}", name)
    return value


def boolean(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = flag(body, name)
    return default if value is None else value


def flag(body: Mapping[str, Any], name: str) -> bool | None:
    """Read a boolean; None if it is absent."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"`{name}` must be true or false", name)
    return value


def text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(f"`{name}` must be a string", name)
    return value


def table(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Read an object; {} if it is absent."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(f"`{name}` must be an object", name)
    return value


def array(body: Mapping[str, Any], name: str) -> list[Any]:
    """Read an array; [] if it is absent."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(f"`{name}` must be an array", name)
    return value
