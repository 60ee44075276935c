from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from tests.gateway.chat.conftest import SCHEMA
from uma_gateway.chat.schema import _FORMATS, _NOT_ENFORCED, constrained, readable, typed, unenforced

PATTERNS = {
    r"^(?!a)b$": False,
    r"(a)\1": False,
    r"\bfoo\b": False,
    r"^(?<x>a)$": True,
    r"^\d{3}-\d{4}$": True,
    r"^a\\b$": True,
    r"^[a-z\-]+$": True,
}


def refusal(schema: Any) -> str:
    return str(LLMatcher.validate_grammar(json.dumps({"grammars": [{"json_schema": schema}]}), None))


def allows(schema: Any, text: str) -> bool:
    from tests.gateway.chat.test_constraint import bytes_tokenizer

    matcher = LLMatcher(bytes_tokenizer(), f"start: value\nvalue: %json {json.dumps(schema)}", log_level=0)
    assert not matcher.get_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and bool(matcher.is_accepting())


@pytest.mark.parametrize("key", sorted(_NOT_ENFORCED))
def test_the_keywords_that_are_called_unenforced_are_those_that_llguidance_does_not_know(key: str) -> None:
    schema = {"type": "object", key: {} if key not in ("minContains", "maxContains") else 1}
    assert "Unimplemented keys" in refusal(schema) and key in refusal(schema)
    assert unenforced(schema) == [f"#/{key}"]
    assert refusal(constrained(schema, strict=False)) == ""
    assert refusal(constrained(schema, strict=True)) != ""


@pytest.mark.parametrize("name", [*sorted(_FORMATS), "regex", "iri", "moonphase"])
def test_the_known_formats_are_those_of_llguidance(name: str) -> None:
    schema = {"type": "string", "format": name}
    assert (refusal(schema) == "") is (name in _FORMATS) is (unenforced(schema) == [])
    assert refusal(constrained(schema, strict=False)) == ""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_that_are_not_regular_are_told_and_left_out(pattern: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    assert (unenforced(schema) == []) is PATTERNS[pattern]
    assert (refusal(schema) == "") is PATTERNS[pattern]
    assert refusal(constrained(schema, strict=False)) == ""


@pytest.mark.parametrize(
    ("schema", "text", "wrong"),
    [
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a": 1}', "7"),
        ({"additionalProperties": {"type": "integer"}}, '{"a": 1}', "7"),
        ({"items": {"type": "string"}, "minItems": 1}, '["a"]', "7"),
        ({"prefixItems": [{"type": "string"}]}, '["a"]', "7"),
        ({"type": "array", "items": {"properties": {"a": {"type": "integer"}}}}, '[{"a": 1}]', "[7]"),
        ({"properties": {"a": {}}, "type": ["object", "null"]}, "null", "7"),
        ({"properties": {"a": {}}, "anyOf": [{"type": "integer"}, {"type": "object"}]}, "7", '"a"'),
        ({}, "7", "}"),
    ],
)
def test_what_has_properties_is_an_object_and_what_has_items_an_array(schema: Any, text: str, wrong: str) -> None:
    given = json.dumps(schema)
    for made in (typed(schema), constrained(schema, strict=True)):
        assert allows(made, text) and not allows(made, wrong)
    assert json.dumps(schema) == given


@pytest.mark.parametrize(
    "key", ["type", "properties", "required", "items", "enum", "pattern", "minItems", "additionalProperties", "anyOf"]
)
def test_a_keyword_that_is_null_is_left_out(key: str) -> None:
    """Clients write null for keywords that they leave out. Only a `const` may be null."""
    schema = {"type": "object", "properties": {"a": {"const": None, key: None}}, "required": ["a"]}
    for made in (constrained(schema, strict=True), constrained({"type": "object", key: None}, strict=True)):
        assert allows(made, '{"a": null}')
    assert not allows(constrained(schema, strict=True), '{"a": 1}')


def test_references_to_other_documents_are_told_and_left_out() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "https://example.org/x.json"}}}
    assert unenforced(schema) == ["#/properties/a/$ref: https://example.org/x.json"]
    assert refusal(constrained(schema, strict=False)) == ""


@pytest.mark.parametrize("name", ["default", "enum", "const", "examples"])
def test_what_is_left_out_may_stand_in_a_property_that_is_named_like_a_keyword(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string", "pattern": "^(?=a)"}}}
    assert refusal(constrained(schema, strict=False)) == ""


def test_gaps_are_found_at_every_depth() -> None:
    gap = {"type": "array", "uniqueItems": True}
    schema = {"anyOf": [{"properties": {"a": gap}}, {"items": gap}], "$defs": {"x": {"additionalProperties": gap}}}
    assert sorted(unenforced(schema)) == [
        "#/$defs/x/additionalProperties/uniqueItems",
        "#/anyOf/0/properties/a/uniqueItems",
        "#/anyOf/1/items/uniqueItems",
    ]


def test_a_property_of_that_name_is_no_keyword() -> None:
    assert unenforced({"type": "object", "properties": {"not": {"type": "string"}, "format": {"type": "string"}}}) == []


def test_objects_have_the_properties_that_they_list() -> None:
    closed = constrained(SCHEMA, strict=False)
    assert allows(closed, '{"name": "Ada", "age": 1}') and not allows(closed, '{"name": "Ada", "age": 1, "more": 2}')
    free = constrained({"type": "object"}, strict=False)
    assert allows(free, '{"anything": [1, {"x": null}]}')
    said = constrained({**SCHEMA, "additionalProperties": {"type": "integer"}}, strict=False)
    assert allows(said, '{"name": "Ada", "age": 1, "more": 2}')


@pytest.mark.parametrize(
    "schema",
    [
        {
            "allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}],
            "type": "object",
        },
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "anyOf": [{"properties": {"b": {"type": "integer"}}}],
        },
        {
            "$defs": {"A": {"properties": {"a": {"type": "integer"}}}},
            "$ref": "#/$defs/A",
            "properties": {"b": {"type": "integer"}},
        },
    ],
)
def test_objects_that_are_put_together_are_not_closed(schema: Any) -> None:
    assert allows(constrained(schema, strict=False), '{"a": 1, "b": 2}')


def test_a_required_property_that_is_not_listed_can_be_written() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}
    assert allows(constrained(schema, strict=False), '{"a": 1, "b": 2}')


@pytest.mark.parametrize("required", [5, 0.5, True, "a", {}, [5], [[]], [{}]])
def test_what_is_no_list_of_required_names_is_left_to_whoever_compiles(required: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": required}
    assert constrained(schema, strict=False)["required"] == required
    assert set(readable({**schema, "properties": {"a": {"enum": 5}}}).get("required") or ()) <= {"a"}


def test_white_space_is_bounded() -> None:
    schema = constrained(SCHEMA, strict=False)
    assert allows(schema, '{\n  "name": "Ada",\n  "age": 1\n}') and not allows(
        schema, '{\n\n\n\n"name": "Ada", "age": 1}'
    )


def test_the_given_schema_is_left_as_it_is() -> None:
    before = json.dumps(SCHEMA)
    constrained(SCHEMA, strict=False)
    assert json.dumps(SCHEMA) == before


def test_a_name_has_one_form_where_other_names_may_come() -> None:
    """With an escape, the grammar would see another name, to which no rule applies."""
    open_to_others = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}
    assert "u" not in constrained(open_to_others, strict=False)["x-guidance"]["json_allowed_escapes"]
    assert "json_allowed_escapes" not in constrained({"type": "string"}, strict=False)["x-guidance"]
    insists = open_to_others | {"properties": {"a": {"const": "\x01"}}}
    assert "json_allowed_escapes" not in constrained(insists, strict=False)["x-guidance"]


def test_annotations_do_not_go_to_the_daemon_but_properties_of_their_names_do() -> None:
    """Descriptions are the largest part of tools: with those of 150 tools the grammar was refused."""
    note = {"title": "t", "description": "e.g.: a", "examples": ["x"], "default": "x", "$comment": "c"}
    schema = {
        **note,
        "type": "object",
        "properties": {
            "description": {"type": "string", **note},
            "list": {"type": "array", "items": {"anyOf": [note]}},
        },
        "enum": [{"description": "kept"}],
        "$defs": {"title": {**note, "type": "integer"}},
    }
    found = constrained(schema, strict=True)
    assert found["properties"] == {
        "description": {"type": "string"},
        "list": {"type": "array", "items": {"anyOf": [{}]}},
    }
    assert found["enum"] == [{"description": "kept"}] and found["$defs"] == {"title": {"type": "integer"}}
    assert not note.keys() & found.keys()


@pytest.mark.parametrize("named", [{"$id": "Output Format"}, {"id": "a b"}, {"$schema": "any"}, {"$schema": 3}])
def test_a_name_that_is_no_uri_is_nobodys_business(named: Any) -> None:
    """griptape writes such a name."""
    schema = {"type": "object", "properties": {"$id": {"const": "a b"}}, "required": ["$id"]}
    assert constrained({**schema, **named}, strict=True) == constrained(schema, strict=True)
    dialect = {"$schema": "http://json-schema.org/draft-07/schema#"}
    assert constrained({**schema, **dialect}, strict=True)["$schema"] == dialect["$schema"]


FAR = [
    {"type": "number", "minimum": -3.402823466385289e38, "maximum": 3.402823466385289e38},
    {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
    {"type": "string", "maxLength": (1 << 53) - 1},
]


@pytest.mark.parametrize("schema", FAR)
def test_the_ends_of_a_type_are_bounds_that_may_be_written(schema: Any) -> None:
    """Zod's `float32`, an int64, a length of JavaScript: one such tool made a request fail."""
    whole = {"type": "object", "properties": {"a": {"anyOf": [schema, {"type": "null"}]}}, "required": ["a"]}
    told = '"x"' if schema["type"] == "string" else "-12"
    assert allows(constrained(whole, strict=True), f'{{"a": {told}}}')
    assert not allows(constrained(whole, strict=True), '{"a": []}')
