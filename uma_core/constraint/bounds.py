"""Computes how much of llguidance's limits a schema needs, before anything is compiled, so that no answer fails halfway
because of them.

Measured on llguidance 1.9 (its parser's messages with low limits). A row of its parser holds everything that may come
next at one place of an answer. It has 4 items for each optional property there, 8 for an object that allows other
properties, 6 for an array, 1 for an object or array in an `enum`, and the items of all branches. A string with a
length limit takes 9 lexer states per character. Each repetition of a counted part of a pattern takes 1 state if the
part is ASCII, and 9 if it may be any character. Pure.
"""

from __future__ import annotations

import importlib
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

sre: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

N_ITEMS_MOST = 2_000  # items of a row; a step costs the square of their number: up to 3 ms for 2,000
N_STATES_MOST = 90_000  # of 100,000; all other states come to a few hundred
STATES_OF_ANY = 9  # for a character that may be any: UTF-8 in all its lengths
UNBOUNDED = sre.MAXREPEAT

T = TypeVar("T")
Resolve = Callable[[str], Any]  # returns the target of a `$ref`


def n_items(schema: Any, resolve: Resolve) -> int:
    """Return the number of items in the first row of an answer to this schema. Counting stops above N_ITEMS_MOST."""
    return _items(schema, resolve, frozenset(), itertools.count())


def _items(schema: Any, resolve: Resolve, above: frozenset[int], n_looks: Iterator[int]) -> int:
    """Count items; every visit counts at least one. A subschema that is referred to twice is visited twice: without a
    limit, a chain of forty such references would take 2^40 visits.
    """
    if next(n_looks) > N_ITEMS_MOST or not isinstance(schema, dict) or id(schema) in above:
        return 1
    above |= {id(schema)}
    n = 1 + _items(resolve(schema["$ref"]), resolve, above, n_looks) if "$ref" in schema else 1
    if schema.get("type") == "object" or "properties" in schema:
        n += 4 * _most_optional(schema) + 8 * (schema.get("additionalProperties") is not False)
    if schema.get("type") == "array" or "items" in schema or "prefixItems" in schema:
        n += 6 * (schema.get("items") is not False)
    n += sum(isinstance(value, dict | list) for value in schema.get("enum", ()))
    n += sum(_items(part, resolve, above, n_looks) for part in schema.get("allOf", ()))
    for keyword in ("anyOf", "oneOf"):
        branches = [branch for branch in schema.get(keyword, ()) if not _is_scalar(branch)]
        if branches:
            n = (n - 1) * len(branches) + sum(_items(branch, resolve, above, n_looks) for branch in branches)
    return n


def _most_optional(schema: dict[str, Any]) -> int:
    """Return the largest number of optional properties between two required ones: any of them may come next.

    Properties come in the schema's order.
    """
    longest = n = 0
    required = set(schema.get("required", ()))
    for name in schema.get("properties", ()):
        n = 0 if name in required else n + 1
        longest = max(longest, n)
    return longest


def _is_scalar(schema: Any) -> bool:
    """Whether the schema allows only constants that are not objects or arrays: together these are a single lexeme,
    however many there are.
    """
    return isinstance(schema, dict) and not isinstance(schema.get("const", {}), dict | list)


def n_states(schema: dict[str, Any]) -> int:
    """Return the most lexer states that the strings of one schema need, not counting its subschemas."""
    counted = max(schema.get("minLength", 0), schema.get("maxLength", 0)) * STATES_OF_ANY
    return int(counted) + sum(map(pattern_states, [schema[k] for k in ("pattern",) if k in schema]))


def pattern_states(pattern: str) -> int:
    """Return the lexer states of an expression; 0 if Python cannot read it."""
    return read(pattern, _weight, 0)


def read(pattern: str, of: Callable[[Iterable[Any]], T], unread: T) -> T:
    """Apply `of` to the parts of an expression, as Python's own parser finds them. Returns `unread` if Python cannot
    parse it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return of(sre.parse(re.sub(r"\\[pP]\{\^?\w+\}", ".", pattern)))
    except (re.error, RecursionError, OverflowError):
        return unread


def _weight(parts: Iterable[Any]) -> int:
    n = 0
    for op, value in parts:
        name = str(op)
        if name.endswith("_REPEAT"):
            least, most, inner = value
            n += _weight(inner) * max(1, least if most == UNBOUNDED else most)
        elif name == "SUBPATTERN":
            n += _weight(value[-1])
        elif name == "BRANCH":
            n += sum(map(_weight, value[1]))
        elif name in ("ANY", "NOT_LITERAL") or (name == "IN" and str(value[0][0]) in ("NEGATE", "CATEGORY")):
            n += STATES_OF_ANY
        elif name != "AT":
            n += 1
    return n
