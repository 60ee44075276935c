"""A keyword with any value is either enforced or refused by name; nothing else can happen."""

from __future__ import annotations

import pytest

from tests.constraint import driving
from uma_core.constraint.schema import KEYWORDS
from uma_core.errors import ErrorCode, UmaError

ODD = [
    None, True, 0, -1, 2.5, 1e300, float("inf"), float("nan"), 10**400, "", "a", "#", "#/x", "^(", [], [[]], [{}],
    ["a"], ["a", ["b"]], [None], {}, {"a": []}, {"a": 1}, {"(": {}}, {"a": None}, {"$ref": []}, [{"$ref": {}}],
]  # fmt: skip
MORE = sorted({"$schema", "$id", "$anchor", "$defs", "uniqueItems", "x-guidance", "x-mine", "title", "not"})


@pytest.mark.parametrize("keyword", sorted(KEYWORDS) + MORE)
def test_a_value_of_any_type_is_enforced_or_refused_with_a_code(compiler, fake, keyword):
    for value in ODD:
        for schema in ({keyword: value}, {"properties": {"a": {keyword: value}}}, {"allOf": [{keyword: value}, {}]}):
            try:
                compiler.compile(fake, driving.schema(schema))
            except UmaError as error:
                assert error.error is ErrorCode.CONSTRAINT_REFUSED, schema
                assert error.detail["field"] == "constraint.json_schema"


@pytest.mark.parametrize("value", [[], {}, 3, None])
def test_a_format_that_is_no_name_is_refused_by_keyword(compiler, fake, value):
    with pytest.raises(UmaError) as caught:
        compiler.compile(fake, driving.schema({"format": value}))
    assert caught.value.detail["keyword"] == "format"
