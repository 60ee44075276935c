"""Checks what several subschemas together demand of the same value: a schema, the target of its `$ref`, and the
branches of its `allOf`, `anyOf` and `oneOf`. llguidance cannot enforce some of it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Resolve = Callable[[str], Any]  # returns the target of a `$ref`


def parts(schema: dict[str, Any], resolve: Resolve) -> Iterator[dict[str, Any]]:
    """Yield subschemas that apply to the same value as the schema, without empty ones."""
    if "$ref" in schema:
        target = resolve(schema["$ref"])
        yield from [target] if isinstance(target, dict) else []
    for keyword in ("allOf", "anyOf", "oneOf"):
        yield from (part for part in schema.get(keyword, ()) if isinstance(part, dict))


def circle(schema: dict[str, Any], resolve: Resolve, done: dict[int, dict[str, Any]]) -> dict[str, Any] | None:
    """Return a subschema whose `$ref` leads back to itself without consuming any part of the answer. None: there is
    none.

    `done`: schemas that were visited, by id, each after its parts; this function adds to it.
    """
    if id(schema) in done:
        return None
    way, on_way = [(schema, parts(schema, resolve))], {id(schema)}
    while way:
        at, rest = way[-1]
        part = next(rest, None)
        if part is None:
            way.pop()
            on_way.discard(id(at))
            done[id(at)] = at
        elif id(part) in on_way:
            begin = next(i for i, (passed, _) in enumerate(way) if passed is part)
            return next(passed for passed, _ in way[begin:] if "$ref" in passed)
        elif id(part) not in done:
            way.append((part, parts(part, resolve)))
            on_way.add(id(part))
    return None


class _Ends(NamedTuple):
    """Bounds that llguidance misreads in some pairs, by the whole number that the pair has in common."""

    above: frozenset[int] = frozenset()  # k in `exclusiveMinimum: k`
    just_below: frozenset[int] = frozenset()  # floor of a fractional upper bound
    below: frozenset[int] = frozenset()  # k in `exclusiveMaximum: k`
    just_above: frozenset[int] = frozenset()  # ceiling of a fractional lower bound

    def wrong(self) -> str:
        """Return the keyword that would not be enforced; "": all would be."""
        if any(k >= 0 for k in self.above & self.just_below):
            return "exclusiveMinimum"
        return "exclusiveMaximum" if any(k <= 0 for k in self.below & self.just_above) else ""


def loose_bound(done: dict[int, dict[str, Any]], resolve: Resolve) -> tuple[str, dict[str, Any]]:
    """Return an exclusive bound that would not be enforced, and the schema that has it; "": there is none.

    Measured on llguidance 1.9: if a range lies between two adjacent whole numbers (`exclusiveMinimum` 3 with `maximum`
    3.5), it accepts the whole number that the bound excludes. The branches of an `anyOf` are treated as one range here,
    which refuses slightly too much.
    """
    if not any("exclusiveMinimum" in schema or "exclusiveMaximum" in schema for schema in done.values()):
        return "", {}  # most schemas: nothing to compare
    found: dict[int, _Ends] = {}
    for schema in done.values():
        all_ends = [_own(schema), *(found[id(part)] for part in parts(schema, resolve))]
        ends = found[id(schema)] = _Ends(*(frozenset[int]().union(*same) for same in zip(*all_ends, strict=True)))
        if ends.wrong():
            return ends.wrong(), schema
    return "", {}


def _own(schema: dict[str, Any]) -> _Ends:
    least, most = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return _Ends(
        _whole(least), _fractions(math.floor, most, schema.get("maximum")),
        _whole(most), _fractions(math.ceil, least, schema.get("minimum")),
    )  # fmt: skip


def _whole(*bounds: float | None) -> frozenset[int]:
    return frozenset(int(bound) for bound in bounds if bound is not None and bound == math.floor(bound))


def _fractions(rounded: Callable[[float], int], *bounds: float | None) -> frozenset[int]:
    return frozenset(rounded(bound) for bound in bounds if bound is not None and bound != math.floor(bound))
