"""The ends of a type, which generators of schemas write as bounds, are no reason to refuse a schema."""

from __future__ import annotations

import pytest

from tests.constraint import driving
from uma_core.constraint.far import FARTHEST, MOST, nearer

FLOAT32, FLOAT64, INT64 = 3.402823466385289e38, 1.7976931348623157e308, 1 << 63


@pytest.mark.parametrize("kind", [{"type": "number"}, {"type": "integer"}, {}])
@pytest.mark.parametrize("end", [FLOAT32, FLOAT64, INT64, FARTHEST + 1, FARTHEST, 10**400])
def test_a_range_of_a_whole_type_is_compiled(compiler, fake, kind, end):
    for least, most in (("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")):
        for bounds in ({least: -end, most: end}, {least: -end}, {most: end}, {least: 0, most: end}):
            compiler.compile(fake, driving.schema({**kind, **bounds}))


def test_bounds_are_moved_only_if_nothing_more_is_allowed_then():
    assert nearer({"minimum": -FLOAT64, "maximum": 7}) == {"minimum": -FARTHEST, "maximum": 7}
    for kept in (
        {"minimum": FLOAT32},
        {"maximum": -FLOAT32},
        {"minLength": 1 << 40},
        {"maximum": True},
        {"maximum": "x"},
    ):
        assert nearer(kept) == kept


@pytest.mark.parametrize("key", ["maxLength", "maxItems", "maxProperties"])
def test_more_than_an_answer_can_have_is_any_number(key):
    assert nearer({key: (1 << 53) - 1}) == {key: MOST}
    assert nearer({key: 9}) == {key: 9}
