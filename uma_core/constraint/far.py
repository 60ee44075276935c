"""Bounds that are too far away for llguidance, which writes a range of numbers out as a regular expression.

Generators of schemas write the ends of a type: of a float (3.4e38), of an int64, of a length in JavaScript.
"""

from __future__ import annotations

from typing import Any

FARTHEST = (1 << 63) - 1024  # the largest double below 2^63: llguidance 1.9 reads whole numbers as int64
MOST = (1 << 31) - 1  # of characters or items: no answer is as long
_LEAST = ("minimum", "exclusiveMinimum")
_MOST = {
    "maximum": FARTHEST, "exclusiveMaximum": FARTHEST, "maxLength": MOST, "maxItems": MOST, "maxProperties": MOST,
}  # fmt: skip


def nearer(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of one schema whose far bounds are as near as llguidance needs them. It allows nothing that the
    schema does not; answers only lack numbers of twenty digits.
    """
    moved = {key: -FARTHEST for key in _LEAST if _is_number(schema.get(key)) and schema[key] < -FARTHEST}
    moved |= {key: most for key, most in _MOST.items() if _is_number(schema.get(key)) and schema[key] > most}
    return schema | moved


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
