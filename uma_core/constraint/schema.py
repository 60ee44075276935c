"""Checks a JSON Schema before it is compiled. A keyword that cannot be enforced is refused by name.

Rules: draft 2020-12, or the older one that `$schema` names. An unknown keyword may be a misspelling, so it is refused
too, unless it begins with `x-`. Pure: JSON values in, JSON values out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from uma_core.constraint import bounds, escapes, together
from uma_core.constraint.ecma import ForeignError, to_rust
from uma_core.constraint.far import nearer
from uma_core.errors import ErrorCode, UmaError

N_BYTES_MOST = 256 << 10  # of a schema or grammar; a 50-property schema has 4 KiB
N_DEEP_MOST = 64  # llguidance's JSON reader stops at 128, and its grammar is as deep as the schema
N_NODES_MOST = 12_000  # JSON values in a schema: compiling takes up to 0.1 ms each
N_NAMED_MOST = 1_000  # properties of one object: compile time grows with the square of their number (1,000: 60 ms)
# total depth of all targets of `$ref`: llguidance follows them recursively (4,000 overflow 8 MiB)
N_LEVELS_MOST = 600
N_PATTERN_NAMES_MOST = 100  # `patternProperties` of one object: each is compared with every other
N_PATTERN_MOST = 4_096  # characters
N_MULTIPLE_MOST = 20_000  # digits of `multipleOf` as a whole number: the automaton has this many states and takes 0.3 s
FIELD = "constraint.json_schema"

_SCHEMA = {"additionalProperties", "items"}  # keywords whose value is a schema, ...
_SCHEMAS = {"prefixItems", "anyOf", "oneOf", "allOf"}  # ... an array of them, ...
_NAMED_SCHEMAS = {"properties", "patternProperties"}  # ... or an object of them
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_ASSERTIONS = {"type", "enum", "const", "required", "pattern", "format", "$ref", *_COUNTS, *_NUMBERS}
_NOTES = {
    "$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default", "examples",
    "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema",
}  # fmt: skip
KEYWORDS = {*_SCHEMA, *_SCHEMAS, *_NAMED_SCHEMAS, *_ASSERTIONS, "additionalItems"}
_OLD_DRAFTS = {
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
}
_DRAFTS = {"https://json-schema.org/draft/2020-12/schema", *_OLD_DRAFTS}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
Path = tuple[str | int, ...]


class Checked(NamedTuple):
    schema: dict[str, Any]  # in the form that llguidance reads best
    tells_names: bool  # each name may be written in only one way: see escapes.py


class _Place(NamedTuple):
    schema: Any
    path: Path


def refused(message: str, keyword: str = "", path: Path = ()) -> UmaError:
    """Return the error that names a keyword and its place, as a JSON pointer into the schema."""
    detail: dict[str, Any] = {"field": FIELD}
    if keyword:
        detail |= {"keyword": keyword, "path": pointer((*path, keyword))}
    return UmaError(ErrorCode.CONSTRAINT_REFUSED, message, **detail)


def pointer(path: Path) -> str:
    """Return a path as an RFC 6901 pointer."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def checked(schema: Any) -> Checked:
    """Check a schema. Raises: CONSTRAINT_REFUSED, with `detail.keyword` if one is at fault."""
    measure(schema)
    if isinstance(schema, bool):
        if not schema:
            raise refused("the schema `false` allows no answer")
        return Checked({}, False)
    if not isinstance(schema, dict):
        raise refused("a schema is an object or a boolean")
    return _Checker(schema).run()


def measure(value: Any) -> None:
    """Refuse JSON that is too deep or too large. Raises: CONSTRAINT_REFUSED."""
    n_nodes, level = 0, [value]
    for _ in range(N_DEEP_MOST):
        n_nodes += len(level)
        if n_nodes > N_NODES_MOST:
            raise refused(f"the schema has more than {N_NODES_MOST} values")
        level = [inner for item in level if isinstance(item, dict | list) for inner in _inside(item)]
        if not level:
            return
    raise refused(f"the schema is nested deeper than {N_DEEP_MOST}")


def _inside(item: dict[str, Any] | list[Any]) -> list[Any]:
    return list(item.values()) if isinstance(item, dict) else item


class _Checker:
    """Visits all subschemas that are reachable from the root."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        draft = root.get("$schema", "https://json-schema.org/draft/2020-12/schema")
        if not isinstance(draft, str) or draft.rstrip("#") not in _DRAFTS:
            raise refused(f"the dialect {draft!r:.80} is not supported", "$schema")
        self._is_old = draft.rstrip("#") in _OLD_DRAFTS
        self._anchors = dict(_anchors(root))
        self._seen: dict[int, Any] = {}  # id of a subschema -> the subschema; a `$ref` may lead to one again
        self._todo = [_Place(root, ())]
        self._places: list[_Place] = []  # places of the subschemas
        self._entered: set[int] = set()
        self._n_levels = 0

    def run(self) -> Checked:
        while self._todo:
            place = self._todo.pop()
            if isinstance(place.schema, bool) or id(place.schema) in self._seen:
                continue
            self._seen[id(place.schema)] = place.schema
            self._places.append(place)
            if not isinstance(place.schema, dict):
                raise refused("a schema is an object or a boolean", *_split(place.path))
            for keyword, value in place.schema.items():
                self._check(place, keyword, value)
        self._check_together()
        self._check_bounds()
        tells_names = any(escapes.tells_names(place.schema) for place in self._places)
        if tells_names:
            self._check_escapes()
        normal = _normal(self._root, self._seen)
        assert isinstance(normal, dict)
        return Checked(normal, tells_names)

    def _check(self, place: _Place, keyword: str, value: Any) -> None:
        path = (*place.path, keyword)
        if keyword in _SCHEMA or (keyword == "additionalItems" and self._is_old):
            if keyword == "items" and isinstance(value, list) and self._is_old:
                self._todo += [_Place(item, (*path, i)) for i, item in enumerate(value)]
            else:
                self._todo.append(_Place(value, path))
        elif keyword in _SCHEMAS and (keyword != "prefixItems" or not self._is_old):
            if not isinstance(value, list) or not value:
                raise refused(f"`{keyword}` must be an array of schemas", keyword, place.path)
            self._todo += [_Place(item, (*path, i)) for i, item in enumerate(value)]
        elif keyword in _NAMED_SCHEMAS:
            self._check_named(place, keyword, value)
        elif keyword == "uniqueItems" and value is False:
            return
        elif keyword in _ASSERTIONS:
            self._check_assertion(place, keyword, value)
        elif keyword == "x-guidance" or (keyword not in _NOTES and not keyword.startswith("x-")):
            raise refused(f"the keyword `{keyword[:64]}` is not supported", keyword[:64], place.path)
        elif keyword == "$id" and place.path:
            raise refused("`$id` is only supported at the root", "$id", place.path)

    def _check_escapes(self) -> None:
        for schema, path in self._places:
            keyword = escapes.unwritable(schema)
            if keyword:
                message = (
                    f"`{keyword}` needs a control character, written as \\uXXXX, which is not possible while objects "
                    "treat names differently and allow others; set `additionalProperties` to false in all objects"
                )
                raise refused(message, keyword, path)

    def _check_together(self) -> None:
        """Check what several subschemas together demand of one value."""
        paths = {id(schema): path for schema, path in self._places}
        done: dict[int, dict[str, Any]] = {}
        for schema, _ in self._places:
            circle = together.circle(schema, self._target, done)
            if circle is not None:
                raise refused("`$ref` leads back to itself, so that no answer could end", "$ref", paths[id(circle)])
        keyword, schema = together.loose_bound(done, self._target)
        if keyword:
            message = f"`{keyword}`: a whole number cannot be excluded if the other bound is less than 1 away"
            raise refused(message, keyword, paths[id(schema)])

    def _check_bounds(self) -> None:
        """Check limits that an answer would otherwise exceed halfway."""
        counted: dict[Any, int] = {}  # equal strings count once
        for schema, path in self._places:
            n_items = bounds.n_items(schema, self._target)
            if n_items > bounds.N_ITEMS_MOST:
                keyword = next(k for k in ("anyOf", "oneOf", "allOf", "properties", "enum", "$ref") if k in schema)
                message = (
                    f"`{keyword}`: too many alternatives at one place of the answer, most likely too many optional "
                    "properties"
                )
                raise refused(f"{message} (the limit is about 480)", keyword, path)
            counted[tuple(schema.get(k) for k in ("minLength", "maxLength", "pattern"))] = bounds.n_states(schema)
            if sum(counted.values()) > bounds.N_STATES_MOST:
                keyword = next(k for k in ("maxLength", "minLength", "pattern") if k in schema)
                n_most = bounds.N_STATES_MOST // bounds.STATES_OF_ANY
                raise refused(f"`{keyword}`: all string lengths together exceed {n_most} characters", keyword, path)

    def _target(self, ref: str) -> Any:
        place = self._anchors.get(ref[1:])
        return place.schema if place is not None else _find(self._root, ref)[0]

    def _check_named(self, place: _Place, keyword: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise refused(f"`{keyword}` must be an object", keyword, place.path)
        if len(value) > N_NAMED_MOST:
            raise refused(f"`{keyword}` has more than {N_NAMED_MOST} entries", keyword, place.path)
        if keyword == "patternProperties":
            if len(value) > N_PATTERN_NAMES_MOST:
                raise refused(f"`{keyword}` has more than {N_PATTERN_NAMES_MOST} entries", keyword, place.path)
            for pattern in value:
                check_pattern(pattern, keyword, place.path)
        self._todo += [_Place(item, (*place.path, keyword, name)) for name, item in value.items()]

    def _check_assertion(self, place: _Place, keyword: str, value: Any) -> None:
        if keyword == "$ref":
            self._follow(place, value)
        elif keyword == "pattern":
            check_pattern(value, keyword, place.path)
        elif keyword == "format" and (not isinstance(value, str) or value not in FORMATS):
            raise refused(f"the format {value!r:.64} is not supported", keyword, place.path)
        elif keyword == "minProperties":
            self._check_least(place, value)
        elif keyword in _COUNTS and not _is_count(value):
            raise refused(f"`{keyword}` must be a whole number, at least 0", keyword, place.path)
        elif keyword in _NUMBERS and not _is_number(value):
            raise refused(f"`{keyword}` must be a number", keyword, place.path)
        elif keyword == "multipleOf" and value <= 0:
            raise refused("`multipleOf` must be greater than 0", keyword, place.path)
        elif (
            keyword == "multipleOf"
            and int("".join(map(str, Decimal(str(value)).normalize().as_tuple().digits))) > N_MULTIPLE_MOST
        ):
            raise refused(f"`multipleOf` {value!r:.40} has too many digits", keyword, place.path)
        elif keyword == "required" and not _are_names(value):
            raise refused("`required` must be an array of unique names", keyword, place.path)
        elif keyword == "enum" and (not isinstance(value, list) or not value):
            raise refused("`enum` must be a non-empty array", keyword, place.path)

    def _check_least(self, place: _Place, value: Any) -> None:
        """Check `minProperties`. A name that is in no `properties` may come twice and then counts once, so at most one
        such name can be guaranteed.
        """
        if not _is_count(value):
            raise refused("`minProperties` must be a whole number, at least 0", "minProperties", place.path)
        required = place.schema.get("required")
        n_required = len(required) if _are_names(required) else 0
        if value > n_required + 1:
            message = f"`minProperties` {value} with {n_required} in `required`: a repeated name would count twice"
            raise refused(message, "minProperties", place.path)

    def _follow(self, place: _Place, ref: Any) -> None:
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise refused("`$ref` is only supported within the schema (`#...`)", "$ref", place.path)
        if ref[1:] in self._anchors:
            self._enter(self._anchors[ref[1:]])
            return
        try:
            self._enter(_Place(*_find(self._root, ref)))
        except (KeyError, IndexError, ValueError):
            raise refused(f"`$ref`: the schema has no {ref[:80]!r}", "$ref", place.path) from None

    def _enter(self, place: _Place) -> None:
        """Visit the target of a `$ref` next."""
        if id(place.schema) not in self._entered:
            self._entered.add(id(place.schema))
            self._n_levels += _depth(place.schema)
            if self._n_levels > N_LEVELS_MOST:
                raise refused(f"the targets of `$ref` have over {N_LEVELS_MOST} levels in total", "$ref", place.path)
        self._todo.append(place)


def _depth(value: Any) -> int:
    n, level = 0, [value]
    while level:
        n += 1
        level = [inner for item in level if isinstance(item, dict | list) for inner in _inside(item)]
    return n


def _split(path: Path) -> tuple[str, Path]:
    """Return the keyword of a subschema's path, and the path of the schema that has the keyword."""
    for i in range(len(path) - 1, -1, -1):
        if path[i] in _SCHEMA | _SCHEMAS | _NAMED_SCHEMAS | {"additionalItems", "$ref"}:
            return str(path[i]), path[:i]
    return "", ()


def _find(root: Any, ref: str) -> tuple[Any, Path]:
    """Return the target of a reference, and its path. Raises: KeyError, IndexError, ValueError."""
    found, path = root, []
    for part in _unquoted(ref[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        key: Any = int(name) if isinstance(found, list) else name
        if not isinstance(found, dict | list):
            raise KeyError(name)
        found = found[key]
        path.append(key)
    if ref not in ("#", "") and not ref.startswith("#/"):
        raise KeyError(ref)
    return found, tuple(path)


def _unquoted(fragment: str) -> str:
    """Undo percent-encoding. Raises: ValueError."""
    return re.sub(rb"%([0-9a-fA-F]{2})", lambda m: bytes([int(m[1], 16)]), fragment.encode()).decode()


def _anchors(root: Any) -> Iterator[tuple[str, _Place]]:
    todo: list[_Place] = [_Place(root, ())]
    while todo:
        value, path = todo.pop()
        if isinstance(value, dict):
            if isinstance(value.get("$anchor"), str):
                yield value["$anchor"], _Place(value, path)
            todo += [_Place(item, (*path, name)) for name, item in value.items() if name not in ("enum", "const")]
        elif isinstance(value, list):
            todo += [_Place(item, (*path, i)) for i, item in enumerate(value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def check_pattern(pattern: Any, keyword: str, path: Path) -> None:
    if not isinstance(pattern, str):
        raise refused(f"`{keyword}` must be a string", keyword, path)
    if len(pattern) > N_PATTERN_MOST:
        raise refused(f"`{keyword}` has {len(pattern)} characters, the limit is {N_PATTERN_MOST}", keyword, path)
    try:
        to_rust(pattern)
    except ForeignError as foreign:
        raise refused(f"`{keyword}`: `{foreign}` in {pattern!r:.80} is not supported", keyword, path) from None


def _normal(value: Any, schemas: dict[int, Any]) -> Any:
    """Return a copy in which subschemas express the same with keywords that llguidance knows."""
    if isinstance(value, list):
        return [_normal(item, schemas) for item in value]
    if not isinstance(value, dict):
        return value
    if id(value) not in schemas:
        return {name: _normal(item, schemas) for name, item in value.items()}
    normal: dict[str, Any] = {}
    for name, item in value.items():
        if name in _COUNTS:
            normal[name] = int(item)
        elif name == "pattern":
            normal[name] = to_rust(item)
        elif name == "patternProperties":
            normal[name] = {to_rust(pattern): _normal(inner, schemas) for pattern, inner in item.items()}
        elif name != "uniqueItems":
            normal[name] = _normal(item, schemas)
    return nearer(normal)
