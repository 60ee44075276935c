r"""Decides which escapes an answer's strings may have, so that no property name can be written in two ways.

llguidance compares names as they are written: it takes `\u0061` for another name than `a`, to which the schema of the
property `a` does not apply. So if a schema treats names differently, strings may not have `\uXXXX`. Apart from such
names, only control characters without an escape of their own need it; a schema that requires one is refused. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from uma_core.constraint.bounds import read

SHORT = 'nrbtf\\"'  # all but `u`, as `json_allowed_escapes` of llguidance
_NEEDS_U = frozenset(map(chr, [*range(0x20), 0x7F])) - frozenset("\n\r\b\t\f")


def tells_names(schema: dict[str, Any]) -> bool:
    """Whether the schema restricts some property names differently from others and allows any name."""
    if schema.get("patternProperties"):
        return True
    return schema.get("additionalProperties") is not False and bool(schema.get("properties") or schema.get("required"))


def unwritable(schema: dict[str, Any]) -> str:
    r"""Return a keyword whose strings cannot be written without `\u`; "" if there is none. Names may have it."""
    for keyword in ("const", "enum"):
        if any(not _NEEDS_U.isdisjoint(text) for text in _strings(schema.get(keyword))):
            return keyword
    return "pattern" if "pattern" in schema and not read(schema["pattern"], _can_write, True) else ""


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _can_write(parts: Iterable[Any]) -> bool:
    return all(_can_write_part(str(op), value) for op, value in parts)


def _can_write_part(name: str, value: Any) -> bool:
    if name == "LITERAL":
        return chr(value) not in _NEEDS_U
    if name == "IN":
        return any(_has_writable(str(op), inner) for op, inner in value)
    if name == "BRANCH":
        return any(map(_can_write, value[1]))
    if name == "SUBPATTERN":
        return _can_write(value[-1])
    return not name.endswith("_REPEAT") or value[0] == 0 or _can_write(value[2])


def _has_writable(name: str, value: Any) -> bool:
    """Whether a class has a member that can be written; for a negated class this is assumed."""
    if name == "LITERAL":
        return chr(value) not in _NEEDS_U
    return name != "RANGE" or any(chr(code) not in _NEEDS_U for code in range(value[0], value[1] + 1))
