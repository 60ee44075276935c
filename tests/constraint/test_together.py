"""Several subschemas restrict one value: the answer obeys all of them, or the schema is refused with the keyword."""

from __future__ import annotations

import itertools

import pytest

from tests.constraint import driving
from uma_core.errors import UmaError

LOOP = {"$ref": "#/$defs/e"}


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"exclusiveMinimum": 3, "exclusiveMaximum": 3.5}, "exclusiveMinimum"),
        ({"exclusiveMinimum": 3, "maximum": 3.5}, "exclusiveMinimum"),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, "exclusiveMinimum"),
        ({"exclusiveMinimum": -1.5, "exclusiveMaximum": -1}, "exclusiveMaximum"),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, "exclusiveMaximum"),
        ({"allOf": [{"exclusiveMinimum": 3.0}, {"maximum": 3.5}]}, "exclusiveMinimum"),
        ({"exclusiveMinimum": 3, "anyOf": [{"maximum": 3.5}, {"maximum": 5}]}, "exclusiveMinimum"),
        ({"maximum": 3.5, "$ref": "#/$defs/a", "$defs": {"a": {"exclusiveMinimum": 3}}}, "exclusiveMinimum"),
    ],
)
def test_a_bound_that_would_not_hold_is_refused(compiler, fake, schema, keyword):
    for place in (schema, {"properties": {"a": schema}} if "$defs" not in schema else schema):
        assert driving.keyword_of(compiler, fake, place | {"type": "number"} if place is schema else place) == keyword


def test_all_the_other_bounds_hold(compiler, fake):
    """For every pair of bounds: a value outside them cannot be written."""
    ends = [-10, -1.5, -1, -0.5, 0, 0.5, 1, 3, 3.25, 3.5, 10]
    answers = [
        "-10",
        "-9.9",
        "-1.5",
        "-1",
        "-1.0",
        "-0.5",
        "0",
        "0.0",
        "0.3",
        "0.5",
        "1",
        "3",
        "3.0",
        "3.25",
        "3.5",
        "10",
    ]
    n_refused = 0
    for (low, high), least, most in itertools.product(
        itertools.combinations(ends, 2), ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
    ):
        schema = {"type": "number", least: low, most: high}
        try:
            compiler.compile(fake, driving.schema(schema))
        except UmaError:
            n_refused += 1
            continue
        for answer in answers:
            value = float(answer)
            is_inside = (low < value or (low == value and least == "minimum")) and (
                value < high or (value == high and most == "maximum")
            )
            if not is_inside:
                assert not driving.can_write(fake, compiler.compile(fake, driving.schema(schema)), answer.encode()), (
                    schema
                )
    assert n_refused < 20


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": LOOP}, "$defs": {"e": LOOP}},
        {"items": LOOP, "$defs": {"e": {"allOf": [LOOP]}}},
        {"items": LOOP, "$defs": {"e": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/f"}]}, "f": LOOP}},
        {"items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"allOf": [{"$ref": "#/$defs/x"}, {}]}}},
        {"$ref": "#"},
        {"anyOf": [{"type": "string"}, {"$ref": "#"}]},
    ],
)  # fmt: skip
def test_a_reference_that_leads_back_to_itself_is_refused(compiler, fake, schema):
    assert driving.keyword_of(compiler, fake, schema) == "$ref"


def test_one_that_takes_something_of_the_answer_is_not(compiler, fake):
    tree = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}
    assert driving.can_write(fake, compiler.compile(fake, driving.schema(tree)), b'{"next":{"next":null}}')


def test_the_same_part_twice_is_no_circle(compiler, fake):
    schema = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": {"$ref": "#/$defs/c"},
              "b": {"$ref": "#/$defs/c"}, "c": {"type": "integer"}}}  # fmt: skip
    assert driving.can_write(fake, compiler.compile(fake, driving.schema(schema)), b"7")
