"""JSON schemas: as the wire's constraint wants them, and what of them is not enforced.

Constraints go to the daemon with the schema itself, and llguidance enforces it there. The chat library sees schemas
only to learn how a template writes arguments; what it cannot read of them is left out for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from uma_core.constraint.escapes import SHORT, tells_names, unwritable
from uma_gateway.chat.errors import ChatCode, ChatError
from uma_gateway.chat.library import LibraryError, call, encode

Schema = dict[str, Any]

# std::regex recurses at every character of a run that a rule's name may not have; 200,000 of them ended the process
MAX_NAME_BYTES = 512
MAX_DEPTH = 200  # levels of JSON; everything here that recurses can follow these
# at most one break and indentation at a place: any number of blanks is where small models get stuck
WHITE_SPACE = r"[ ]|\n{1,2}[ \t]{0,20}"

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = (
    "items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip
_NOT_ENFORCED = frozenset((
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef",
))  # fmt: skip
_NO_PATTERN = re.compile(r"\(\?<?[=!]|\\[1-9bBkc]")  # looking around, going back: not regular
_DIALECT = re.compile(r"https?://json-schema\.org/draft")
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
_BESIDE_REF = frozenset(("$ref", "$defs", "definitions", "$schema"))
# say nothing of an answer's form; often most of a schema
_ANNOTATIONS = frozenset(
    ("title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly")
)
# with one of these a schema says itself what a value may be
_TELL_TYPE = frozenset(("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"))
# with one of these beside its properties an object may have more of them than `properties` says
_OPEN = frozenset((
    "additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref", "if", "dependentSchemas",
    "unevaluatedProperties",
))  # fmt: skip


def subschemas(schema: Any, path: str = "#") -> Iterator[tuple[str, Schema]]:
    """The schema and all schemas inside it, each with its path."""
    waiting = [(path, schema)]
    while waiting:
        path, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for key in _MAPS:
            if isinstance(node.get(key), dict):
                waiting += [(f"{path}/{key}/{name}", sub) for name, sub in node[key].items()]
        for key in _LISTS:
            if isinstance(node.get(key), list):
                waiting += [(f"{path}/{key}/{i}", sub) for i, sub in enumerate(node[key])]
        waiting += [(f"{path}/{key}", node[key]) for key in _ONE if key in node]


def typed(schema: Any) -> Any:
    """A copy in which what has properties is an object, and what has items is an array.

    By the letter of JSON Schema such a schema without a type allows a number too. llama-server and Ollama read it so,
    and llama-server's own examples are written so. A keyword that is null is left out: so do clients write what they
    leave out, and Anthropic's types allow it.
    """
    whole = json.loads(json.dumps(schema))
    for _, node in subschemas(whole):
        for key in [key for key, value in node.items() if value is None and key not in ("const", "default")]:
            del node[key]
        if _TELL_TYPE & node.keys():
            continue
        if any(isinstance(node.get(key), dict) for key in ("properties", "additionalProperties")):
            node["type"] = "object"
        elif "items" in node or "prefixItems" in node:
            node["type"] = "array"
    return whole


def check_schema(schema: Any) -> None:
    """Raises: ChatError where a schema is so deep, or a name in it so long, that the library could not take it."""
    waiting = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ChatError(ChatCode.TOO_DEEP, f"a schema is nested deeper than {MAX_DEPTH} levels")
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [(item, depth + 1) for item in inside]
    for path, node in subschemas(schema):
        names = [name for key in _MAPS if isinstance(node.get(key), dict) for name in node[key]]
        if isinstance(node.get("$ref"), str):
            names.append(node["$ref"])
        for name in names:
            if len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
                raise ChatError(
                    ChatCode.BAD_REQUEST, f"a name in the schema at {path[:100]} is longer than {MAX_NAME_BYTES} bytes"
                )


def unenforced(schema: Any) -> list[str]:
    """The keywords that do not shape an answer, with their places: an answer may break them."""
    found = []
    for path, node in subschemas(schema):
        found += [f"{path}/{key}" for key in sorted(_NOT_ENFORCED & node.keys())]
        if isinstance(node.get("format"), str) and node["format"] not in _FORMATS:
            found.append(f"{path}/format: {node['format'][:40]}")
        if _is_foreign(node):
            found.append(f"{path}/$ref: {node['$ref'][:80]}")
        if _has_odd_pattern(node):
            found.append(f"{path}/pattern: {node['pattern'][:80]}")
    return found


def _is_foreign(node: Schema) -> bool:
    return isinstance(node.get("$ref"), str) and not node["$ref"].startswith("#")


def _has_odd_pattern(node: Schema) -> bool:
    pattern = node.get("pattern")
    return isinstance(pattern, str) and bool(_NO_PATTERN.search(pattern.replace("\\\\", "")))


def refuse_unenforced(schema: Any, what: str) -> None:
    """Raises: ChatError where a schema that must be kept to the letter has a keyword that cannot be."""
    gaps = unenforced(schema)
    if gaps:
        raise ChatError(ChatCode.SCHEMA_UNSUPPORTED, f"{what} cannot be enforced: {', '.join(gaps[:5])}")


def constrained(schema: Any, strict: bool) -> Schema:
    """The schema as the daemon gets it. Not strict: what llguidance does not know is ignored instead of refused.

    Objects that list their properties have no others unless the schema says so: small models invent them without end.
    """
    whole: Schema = _bare(typed(unnamed(schema))) if isinstance(schema, dict) else {}
    if not strict:
        whole = _loosened(whole)
    if _may_be_closed(whole):
        whole = _closed(whole)
    whole["x-guidance"] = {"whitespace_pattern": WHITE_SPACE, "lenient": not strict}
    nodes = [node for _, node in subschemas(whole)]
    if any(map(tells_names, nodes)) and not any(map(unwritable, nodes)):
        whole["x-guidance"]["json_allowed_escapes"] = SHORT
    return whole


def unnamed(schema: Schema) -> Schema:
    """A copy without the name of the whole, and without a dialect that is none of JSON Schema's. Nothing here is looked
    up by a name, and clients write any text there; llguidance takes nothing but URIs, and dialects that it knows.
    """
    dialect = schema.get("$schema")
    is_known = isinstance(dialect, str) and bool(_DIALECT.match(dialect))
    return {key: value for key, value in schema.items() if key not in ("$id", "id") and (is_known or key != "$schema")}


def _bare(node: Any) -> Any:
    """A copy without annotations."""
    if not isinstance(node, dict):
        return node
    return _rebuilt({key: value for key, value in node.items() if key not in _ANNOTATIONS}, _bare, _LISTS, _ONE)


def _rebuilt(node: Schema, change: Callable[[Any], Any], lists: Collection[str], ones: Collection[str]) -> Schema:
    """A copy whose schemas are changed: those in maps, and under these keywords of lists and of single ones."""
    copy = dict(node)
    for key in _MAPS:
        if isinstance(node.get(key), dict):
            copy[key] = {name: change(sub) for name, sub in node[key].items()}
    for key in lists:
        if isinstance(node.get(key), list):
            copy[key] = [change(sub) for sub in node[key]]
    return copy | {key: change(node[key]) for key in ones if key in node}


def _loosened(node: Any) -> Any:
    """A copy without what llguidance refuses even when it is told to ignore what it does not know."""
    if isinstance(node, list):
        return [_loosened(item) for item in node]
    if not isinstance(node, dict):
        return node
    drop = {"$ref"} if _is_foreign(node) else {"pattern"} if _has_odd_pattern(node) else set()
    return {
        key: value if key in ("const", "enum", "default", "examples") else _loosened(value)
        for key, value in node.items()
        if key not in drop
    }


def _may_be_closed(schema: Schema) -> bool:
    """False where schemas are put together, so that each describes only a part of an object."""
    return not any("allOf" in node or ("$ref" in node and node.keys() - _BESIDE_REF) for _, node in subschemas(schema))


def _closed(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    properties = node.get("properties")
    is_joined = isinstance(properties, dict) and bool(_OPEN & node.keys())
    lists = ("prefixItems",) if is_joined else ("prefixItems", "anyOf", "oneOf")
    copy = _rebuilt(node, _closed, lists, ("items", "additionalProperties"))
    if isinstance(properties, dict) and not is_joined and set(_required(node)) <= properties.keys():
        copy["additionalProperties"] = False
    return copy


def part(whole: Schema, pointer: tuple[str, ...]) -> Schema:
    """The schema at a place within another one, able to stand alone: its references still lead somewhere."""
    if not pointer:
        return whole
    node: Any = whole
    for key in pointer:
        node = node[int(key)] if isinstance(node, list) else node[key]
    if not any("$ref" in sub for _, sub in subschemas(node)):
        return dict(node) if isinstance(node, dict) else {}
    place = "/".join(key.replace("~", "~0").replace("/", "~1") for key in pointer)
    return {"$ref": f"#/$defs/whole/{place}", "$defs": {"whole": _moved(whole)}}


def _moved(node: Any) -> Any:
    """A copy whose references into itself lead to where `part` puts it."""
    if isinstance(node, list):
        return [_moved(item) for item in node]
    if not isinstance(node, dict):
        return node
    copy = {key: _moved(value) for key, value in node.items()}
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        copy["$ref"] = f"#/$defs/whole{reference[1:]}"
    return copy


def readable(schema: Any) -> Schema:
    """The schema, or what the chat library can read of it: arguments that it cannot read have any value."""
    if is_readable(schema):
        return dict(schema)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {"type": "object", "properties": {}}
    kept = {
        name: sub if is_readable(sub) and not any("$ref" in node for _, node in subschemas(sub)) else {}
        for name, sub in properties.items()
    }
    return {
        "type": "object",
        "properties": kept,
        "required": [name for name in _required(schema) if name in kept],
    }


def _required(node: Schema) -> list[str]:
    """Names of properties. Whoever compiles the schema reports what is not a name."""
    given = node.get("required")
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def is_readable(schema: Any) -> bool:
    try:
        call("uma_chat_check_schema", encode(schema, "a schema"))
    except LibraryError as error:
        if error.code is ChatCode.SCHEMA_UNSUPPORTED:
            return False
        raise
    return True
