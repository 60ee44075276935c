"""Prompts that no chat template writes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from uma_gateway.errors import GatewayError, Kind
from uma_gateway.model import Model
from uma_gateway.plain import MOST_PROMPTS, constraint_field, gap_field, prompt_field, read_prompts


class Served:
    """A model that has tokens for filling in, and one that begins a text, if it has an id."""

    def __init__(self, begins: int | None = 1, has_infill: bool = True) -> None:
        self.begins, self.has_infill = begins, has_infill

    def special_id(self, *names: str) -> int | None:
        return self.begins

    def can(self, field: str) -> bool:
        return True


def served(begins: int | None = 1, has_infill: bool = True) -> Model:
    return cast("Model", Served(begins, has_infill))


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], "b"], [[1, 2], "b"]),
        (["a", 1], [["a", 1]]),  # llama-server's form of one prompt
        ({"prompt_string": "a"}, ["a"]),
        ([{"prompt_string": "a"}, "b"], ["a", "b"]),
    ],
)
def test_one_prompt_or_several(prompt: Any, prompts: list[Any]) -> None:
    assert read_prompts({"prompt": prompt}) == prompts


@pytest.mark.parametrize("prompt", [None, [], 5, [[]], [True], [0.5], [["a", None]], ["a"] * (MOST_PROMPTS + 1), {}])
def test_what_is_no_prompt_is_named(prompt: Any) -> None:
    with pytest.raises(GatewayError) as caught:
        read_prompts({"prompt": prompt})
    assert str(caught.value.param).startswith("prompt") and caught.value.kind is Kind.INVALID


def test_an_empty_prompt_is_the_token_that_begins_a_text() -> None:
    assert prompt_field(served(), "") == prompt_field(served(), []) == {"tokens": [1]}
    assert prompt_field(served(), "a") == {"prompt": "a"}
    assert prompt_field(served(), [5]) == {"tokens": [5]}
    assert prompt_field(served(), ["a", 5]) == {"prompt": ["a", 5]}
    assert prompt_field(served(begins=0), "") == {"tokens": [0]}
    with pytest.raises(GatewayError):
        prompt_field(served(begins=None), "")


def test_a_gap_may_be_at_the_beginning() -> None:
    assert gap_field(served(), "a", "") == {"prompt": "a"}
    assert gap_field(served(), "a", "b") == {"prompt": "a", "suffix": "b"}
    assert gap_field(served(), "", "b") == {"infill": {"prefix": "", "suffix": "b"}}
    with pytest.raises(GatewayError) as caught:
        gap_field(served(has_infill=False), "a", "b")
    assert (caught.value.kind, caught.value.param) == (Kind.NOT_SUPPORTED, "suffix")


def test_a_form_and_a_grammar_conflict() -> None:
    assert constraint_field(served(), None, "", "json_schema") == {}
    assert constraint_field(served(), True, "", "json_schema") == {"constraint": {"json": True}}
    assert constraint_field(served(), None, "root ::= x", "p") == {"constraint": {"gbnf": "root ::= x"}}
    assert constraint_field(served(), None, "", "p", {"regex": "a"}) == {"constraint": {"regex": "a"}}
    for form, other in ((True, None), ({}, None), (None, {"regex": "a"})):
        with pytest.raises(GatewayError) as caught:
            constraint_field(served(), form, "root ::= x", "p", other)
        assert caught.value.param == "grammar"
