"""vLLM's and SGLang's fields for the form of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from uma_gateway.apis.openai.guided import Guided, read_guided
from uma_gateway.errors import GatewayError, Kind


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({}, Guided()),
        ({"structured_outputs": {"whitespace_pattern": " "}}, Guided()),
        ({"guided_json": None}, Guided()),
        ({"guided_json": {"type": "array"}}, Guided("guided_json", {"type": "array"})),
        ({"guided_json": '{"type": "array"}'}, Guided("guided_json", {"type": "array"})),
        ({"guided_json": {}}, Guided("guided_json", True)),
        ({"structured_outputs": {"json_object": True}}, Guided("structured_outputs.json_object", True)),
        ({"structured_outputs": {"json_object": False}}, Guided()),
        ({"guided_choice": ["a", "b"]}, Guided("guided_choice", constraint={"choices": ["a", "b"]})),
        ({"regex": "a+"}, Guided("regex", constraint={"regex": "a+"})),
        ({"ebnf": 'root ::= "a"'}, Guided("ebnf", constraint={"gbnf": 'root ::= "a"'})),
        ({"guided_grammar": 'start: "a"'}, Guided("guided_grammar", constraint={"lark": 'start: "a"'})),
    ],
)
def test_forms(body: dict[str, Any], form: Guided) -> None:
    assert read_guided(body) == form


def test_the_same_form_in_an_old_and_a_new_field_is_no_conflict() -> None:
    both: dict[str, Any] = {"structured_outputs": {"regex": "a"}, "guided_regex": "a"}
    assert read_guided(both).constraint == {"regex": "a"}
    with pytest.raises(GatewayError) as caught:
        read_guided({**both, "guided_regex": "b"})
    assert caught.value.param == "guided_regex"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"guided_json": "{"}, Kind.INVALID),
        ({"guided_json": "[]"}, Kind.INVALID),
        ({"guided_choice": []}, Kind.INVALID),
        ({"guided_choice": ["a", ""]}, Kind.INVALID),
        ({"guided_regex": ""}, Kind.INVALID),
        ({"use_beam_search": True}, Kind.NOT_SUPPORTED),
    ],
)
def test_what_is_wrong_has_the_field_s_name(body: dict[str, Any], kind: Kind) -> None:
    with pytest.raises(GatewayError) as caught:
        read_guided(body)
    assert (caught.value.kind, caught.value.param) == (kind, next(iter(body)))
