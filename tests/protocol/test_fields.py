"""How values are checked against their declarations, for fields that no operation needs to have."""

from __future__ import annotations

from typing import Any

import pytest

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.fields import TAG_NAME, TAG_TEXT, Field, Kind, check_fields, check_value, refuse_unknown

SHARE = Field("f", Kind.NUMBER, "", None, 0, 1, is_open_low=True)
WORDS = Field("f", Kind.STRINGS, "", None, 1, 2, choices=("aa", "bb"))
TAGS = Field("f", Kind.TAGS, "", high=1)
INNER = Field("f", Kind.OBJECT, "", fields=(Field("a", Kind.INTEGER, "", 7), Field("b", Kind.BOOLEAN, "")))


def of(kind: Kind) -> Field:
    return Field("f", kind, "")


@pytest.mark.parametrize(
    ("field", "value", "checked"),
    [
        (SHARE, 1, 1.0),
        (WORDS, "aa", ("aa",)),
        (WORDS, ["bb", "aa"], ("bb", "aa")),
        (TAGS, {"n" * TAG_NAME: "t" * TAG_TEXT}, {"n" * TAG_NAME: "t" * TAG_TEXT}),
        (INNER, {"b": False}, {"a": 7, "b": False}),
        (of(Kind.OBJECT), {"any": [1]}, {"any": [1]}),
        (of(Kind.ID), -(1 << 63), -(1 << 63)),
        (of(Kind.INTEGERS), [0, (1 << 31) - 1], (0, (1 << 31) - 1)),
        (of(Kind.MIXED), ["a", 1], ("a", 1)),
        (of(Kind.INPUTS), "a", ("a",)),
        (of(Kind.INPUTS), [1, 2], ((1, 2),)),
        (of(Kind.INPUTS), ["a", [1, 2]], ("a", (1, 2))),
        (of(Kind.BIASES), [[1, False], ["a", 2]], ((1, False), ("a", 2.0))),
        (of(Kind.SCHEMA), False, False),
    ],
)
def test_values_arrive_in_one_form(field: Field, value: Any, checked: Any) -> None:
    found = check_value(field, {"f": value})
    assert found == checked and type(found) is type(checked)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (SHARE, 0, "`f` must be more than 0"),
        (SHARE, 1.5, "`f` must be at most 1"),
        (SHARE, True, "`f` must be a number"),
        (WORDS, [], "`f` must not be empty"),
        (WORDS, ["aa"] * 3, "`f` must have at most 2 items"),
        (WORDS, ["ab"], "`f` must contain only aa, bb"),
        (TAGS, {"a": 1, "b": 2}, "`f` must have at most 1 entries"),
        (TAGS, {"n" * (TAG_NAME + 1): 1}, "`f` must have names of at most"),
        (TAGS, {"a": None}, "`f.a` must be a string"),
        (INNER, {"a": True}, "`f.a` must be an integer"),
        (INNER, {"A": 1}, "`f.A` is not a known field; did you mean `f."),
        (of(Kind.ID), 1 << 63, "`f` must fit in 64 bits"),
        (of(Kind.INTEGERS), [1 << 31], "`f` must contain only integers"),
        (of(Kind.MIXED), ["a", -1], "`f[1]` must be a string or a token id"),
        (of(Kind.INPUTS), ["a", ""], "`f[1]` must not be empty"),
        (of(Kind.INPUTS), [1, "a"], "`f` must contain only token ids"),
        (of(Kind.BIASES), [[1, True]], "`f[0]` must end with a number or false"),
        (of(Kind.BIASES), [[1, 2, 3]], "`f[0]` must be an array of two items"),
        (of(Kind.SCHEMA), "x", "`f` must be an object or boolean"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_should_be(field: Field, value: Any, message: str) -> None:
    with pytest.raises(UmaError) as caught:
        check_value(field, {"f": value})
    assert caught.value.error is ErrorCode.BAD_REQUEST
    assert caught.value.message.startswith(message)
    assert caught.value.detail["field"] == message.split("`")[1]


def test_null_is_absent_and_what_is_required_must_be_there() -> None:
    fields = (Field("a", Kind.INTEGER, "", 5), Field("b", Kind.STRING, "", is_required=True))
    assert check_fields(fields, {"a": None, "b": "x"}) == {"a": 5, "b": "x"}
    for values in ({}, {"b": None}):
        with pytest.raises(UmaError, match="`b` is required"):
            check_fields(fields, values)


def test_the_clients_own_names_are_known() -> None:
    refuse_unknown((INNER,), {"f": 1, "x_note": 2})
    with pytest.raises(UmaError) as caught:
        refuse_unknown((INNER,), {"y" * 1000: 1})
    assert "nearest" not in caught.value.detail and len(caught.value.detail["field"]) < 100
