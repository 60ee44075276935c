r"""Names of properties have one form: `\u0061` is not a way around a schema's rules for `a`."""

from __future__ import annotations

import pytest

from tests.constraint import driving
from uma_core.errors import ErrorCode, UmaError

INTEGER = {"type": "integer"}
CLOSED = {"additionalProperties": False}


def writes(compiler, fake, schema, answer):
    return driving.can_write(fake, compiler.compile(fake, driving.schema(schema)), answer.encode())


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": INTEGER}, "required": ["a"]},
        {"properties": {"a": INTEGER}},
        {"patternProperties": {"^a": INTEGER}},
        {"required": ["a"], "patternProperties": {"^a": INTEGER}, "additionalProperties": {"type": "string"}},
        {"allOf": [{"properties": {"a": INTEGER}}, {"properties": {"b": {}}}]},
        {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": INTEGER}}}},
    ],
)
def test_an_escaped_name_does_not_get_past_what_the_schema_says_of_it(compiler, fake, schema):
    assert writes(compiler, fake, schema, r'{"a":1}')
    assert not writes(compiler, fake, schema, r'{"a":1,"\u0061":"x"}')
    assert not writes(compiler, fake, schema, r'{"\u0061":"x"}')


def test_within_such_an_object_too(compiler, fake):
    schema = {"properties": {"o": {"properties": {"a": INTEGER}}}}
    assert not writes(compiler, fake, schema, r'{"o":{"\u0061":"x"}}')


def test_strings_keep_the_short_escapes_and_names_all_their_characters(compiler, fake):
    schema = {"properties": {"a": {"type": "string"}, "b\x01": INTEGER}, "required": ["b\x01"]}
    assert writes(compiler, fake, schema, r'{"a":"\n\t\"\\","b\u0001":1}')


@pytest.mark.parametrize("open_to", [{}, {"type": "string"}, {"additionalProperties": {"type": "string"}}])
def test_where_no_name_is_told_from_others_control_characters_can_be_written(compiler, fake, open_to):
    schema = {"type": "array", "items": open_to, "prefixItems": [{"const": "a\x01"}]}
    assert writes(compiler, fake, schema, r'["a\u0001"]')


def test_a_closed_object_may_have_them_too(compiler, fake):
    schema = {"properties": {"a": {"const": "\x01"}}, "required": ["a"], **CLOSED}
    assert writes(compiler, fake, schema, r'{"a":"\u0001"}')


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("const", "a\x01"),
        ("const", {"b": ["\x7f"]}),
        ("enum", ["a", "\x00"]),
        ("pattern", "^\x01$"),
        ("pattern", "^a[\\x01-\\x07]b$"),
        ("pattern", "^(a\\x02|\\x03)+$"),
    ],
)
def test_what_insists_on_a_control_character_is_refused_by_name(compiler, fake, keyword, value):
    with pytest.raises(UmaError) as caught:
        compiler.compile(fake, driving.schema({"properties": {"a": {keyword: value}}}))
    assert caught.value.error is ErrorCode.CONSTRAINT_REFUSED
    assert (caught.value.detail["keyword"], caught.value.detail["path"]) == (keyword, f"/properties/a/{keyword}")


@pytest.mark.parametrize("pattern", ["^a\\x01?$", "^(a|\\x01)$", "^[\\x00-a]$", "^[^b]$", "^\\t?a.*$", "^\\x01*a$"])
def test_what_can_do_without_is_not(compiler, fake, pattern):
    schema = {"properties": {"a": {"type": "string", "pattern": pattern}}}
    assert writes(compiler, fake, schema, r'{"a":"a"}')
