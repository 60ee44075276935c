"""What a request may say about the form of its answer."""

from __future__ import annotations

from typing import Any

import pytest

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.messages import decode
from uma_core.types import Constraint, Trigger


def constraint(**fields: Any) -> Constraint | None:
    request = decode({"prompt": "hi", "constraint": fields}, None).request
    assert request is not None
    return request.constraint


@pytest.mark.parametrize(
    ("kind", "value", "arrives"),
    [
        ("json_schema", {"type": "string"}, {"type": "string"}),
        ("regex", "a+", "a+"),
        ("choices", ["a", "b"], ("a", "b")),
        ("gbnf", 'root ::= "a"', 'root ::= "a"'),
        ("lark", 'start: "a"', 'start: "a"'),
    ],
)
def test_every_kind_arrives_under_its_name(kind: str, value: Any, arrives: Any) -> None:
    assert constraint(**{kind: value}) == Constraint(kind, arrives, (), "")
    assert constraint(**{kind: value, "json": False}) == Constraint(kind, arrives, (), "")
    assert constraint(**{kind: value, "prefix": "<"}) == Constraint(kind, arrives, (), "<")


def test_json_is_any_object() -> None:
    assert constraint(json=True) == Constraint("json_schema", {"type": "object"}, (), "")


def test_triggers_are_texts_patterns_and_control_tokens() -> None:
    items = [
        {"type": "word", "value": "<tool>"},
        {"type": "pattern", "value": "^a", "after": True},
        {"type": "token", "value": 7},
        {"type": "token", "value": "<|tool|>"},
    ]
    given = constraint(regex="a", triggers=items)
    assert given is not None and given.triggers == (
        Trigger("word", "<tool>", False),
        Trigger("pattern", "^a", True),
        Trigger("token", 7, False),
        Trigger("token", "<|tool|>", False),
    )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "constraint.json_schema` is required"),
        ({"json": False}, "constraint.json_schema` is required"),
        ({"regex": "a", "gbnf": "root ::= "}, "constraint.gbnf` conflicts"),
        ({"json": True, "regex": "a"}, "constraint.regex` conflicts"),
        ({"regex": "a", "triggers": [{"type": "word", "value": "a"}, {"type": "pattern", "value": 7}]},
         "constraint.triggers[1].value"),
        ({"regex": "a", "triggers": [{"type": "word", "value": "a"}], "prefix": "b"}, "constraint.prefix"),
        ({"regex": "a", "triggers": [{"type": "word", "value": "a"}] * 65}, "constraint.triggers"),
    ],
)  # fmt: skip
def test_what_says_nothing_or_two_things_is_refused_with_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(UmaError) as caught:
        constraint(**fields)
    assert (caught.value.error, caught.value.detail["field"]) == (ErrorCode.BAD_REQUEST, field.split("`")[0])
    assert field in caught.value.message
