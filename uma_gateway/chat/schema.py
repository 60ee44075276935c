"""JSON schemas in the form that the wire's constraint needs, and the list of their keywords that are not enforced.

Constraints go to the daemon with the schema itself, and llguidance enforces it there. The chat library uses schemas
only to learn how a template writes arguments; parts that it cannot read are removed for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from uma_core.constraint.escapes import SHORT, tells_names, unwritable
from uma_core.constraint.far import nearer
from uma_gateway.chat.errors import ChatCode, ChatError
from uma_gateway.chat.library import LibraryError, call, encode

Schema = dict[str, Any]

# llama.cpp makes a rule's name of it: std::regex replaces the characters that such a name cannot have, and recurses at
# every character of a run of them. 200,000 of them ended the process.
MAX_NAME_BYTES = 512
MAX_DEPTH = 200  # levels of JSON; all recursive functions here can follow as many
# at most one line break and indentation at a time: if any number is allowed, small models never stop writing blanks
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
_NO_PATTERN = re.compile(r"\(\?<?[=!]|\\[1-9bBkc]")  # lookaround and references to groups: not regular
_DIALECT = re.compile(r"https?://json-schema\.org/draft")
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
_BESIDE_REF = frozenset(("$ref", "$defs", "definitions", "$schema"))
# keywords that do not affect an answer's form; often most of a schema
_ANNOTATIONS = frozenset(
    ("title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly")
)
# a schema with one of these determines its own values
_TELL_TYPE = frozenset(("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"))
# an object with one of these may have further properties than those in its `properties`
_OPEN = frozenset((
    "additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref", "if", "dependentSchemas",
    "unevaluatedProperties",
))  # fmt: skip


def subschemas(schema: Any, path: str = "#") -> Iterator[tuple[str, Schema]]:
    """Yield the schema and all schemas inside it, each with its path."""
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
    """Return a copy in which a schema with properties is an object, and one with items is an array.

    Strictly, JSON Schema also allows a number for such a schema without a type. llama-server and Ollama read it as
    here, and llama-server's own examples rely on that. A keyword that is null is dropped: clients write null for absent
    keywords, and Anthropic's types allow it.
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
    """Check a schema. Raises: ChatError if it is nested deeper, or a name in it is longer, than the library can
    handle.
    """
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
    """Return the keywords that do not shape an answer, with their places: an answer may break them."""
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
    """Check a schema that must be enforced completely. Raises: ChatError if a keyword in it cannot be enforced."""
    gaps = unenforced(schema)
    if gaps:
        raise ChatError(ChatCode.SCHEMA_UNSUPPORTED, f"{what} cannot be enforced: {', '.join(gaps[:5])}")


def constrained(schema: Any, strict: bool) -> Schema:
    """Return the schema in the daemon's form. Not strict: keywords that llguidance does not know are ignored and not
    refused.

    Objects that list their properties have no others unless the schema allows them, because small models would never
    stop inventing properties.
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
    """Return a copy without the `$id` of the whole, and without a dialect that is not one of JSON Schema's. Nothing is
    looked up by an id here, and clients write any text into both, but llguidance accepts only URIs and known dialects.
    """
    dialect = schema.get("$schema")
    is_known = isinstance(dialect, str) and bool(_DIALECT.match(dialect))
    return {key: value for key, value in schema.items() if key not in ("$id", "id") and (is_known or key != "$schema")}


def _bare(node: Any) -> Any:
    """Return a copy without annotations, and without bounds that llguidance refuses because they are too far away."""
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if key not in _ANNOTATIONS}
    return _rebuilt(nearer(kept), _bare, _LISTS, _ONE)


def _rebuilt(node: Schema, change: Callable[[Any], Any], lists: Collection[str], ones: Collection[str]) -> Schema:
    """Return a copy whose inner schemas are changed: those in maps, and under these keywords of lists and of single
    ones.
    """
    copy = dict(node)
    for key in _MAPS:
        if isinstance(node.get(key), dict):
            copy[key] = {name: change(sub) for name, sub in node[key].items()}
    for key in lists:
        if isinstance(node.get(key), list):
            copy[key] = [change(sub) for sub in node[key]]
    return copy | {key: change(node[key]) for key in ones if key in node}


def _loosened(node: Any) -> Any:
    """Return a copy without the keywords that llguidance refuses even if it is told to ignore unknown ones."""
    if isinstance(node, list):
        return [_loosened(item) for item in node]
    if not isinstance(node, dict):
        return node
    drop = {"$ref"} if _is_foreign(node) else {"pattern"} if _has_odd_pattern(node) else set()
    return _rebuilt({key: value for key, value in node.items() if key not in drop}, _loosened, _LISTS, _ONE)


def _may_be_closed(schema: Schema) -> bool:
    """Return False if schemas are combined, so that each describes only a part of an object."""
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
    """Return the schema at a place within another one, in a form that can stand alone because its references still
    resolve.
    """
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
    """Return a copy whose references into itself lead to its place in `part`."""
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
    """Return the schema, or the parts of it that the chat library can read: arguments that it cannot read may have any
    value.
    """
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
    """Return names of properties. The compiler of the schema reports entries that are not names."""
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
