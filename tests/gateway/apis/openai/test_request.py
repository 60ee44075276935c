"""OpenAI's chat requests, read."""

from __future__ import annotations

from typing import Any

import pytest

from uma_gateway.apis.openai.request import answer_form, read_chat, read_logprobs, read_tools, wanted_form
from uma_gateway.errors import GatewayError

USER = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("look", "say")]


def test_what_a_template_is_told_of_the_answer():
    told = read_chat({"messages": USER, "verbosity": "low", "reasoning_effort": "high"}).chat.template_kwargs
    assert told == {"verbosity": "low", "reasoning_effort": "high"}


@pytest.mark.parametrize("choice", ["any", {"type": "any"}, "required", {"type": "required"}])
def test_other_names_of_a_required_call(choice: Any) -> None:
    assert read_tools(TOOLS, choice)[1] == "required"


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "say"}},
        {"type": "function", "name": "say"},  # the Responses API
    ],
)
def test_a_named_tool_is_called_once_whatever_is_wished(choice: Any) -> None:
    chat = read_chat({"messages": USER, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": True}).chat
    assert chat.tool_choice == {"type": "function", "function": {"name": "say"}} and chat.parallel_tool_calls is False


@pytest.mark.parametrize(
    "choice",
    [
        "say",
        5,
        {"name": "sing"},
        {"type": "function", "function": {}},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "none", "tools": [{"name": "say"}]},
    ],
)
def test_a_tool_choice_that_chooses_nothing_is_named(choice: Any) -> None:
    with pytest.raises(GatewayError) as caught:
        read_tools(TOOLS, choice)
    assert caught.value.param == "tool_choice"


def test_functions_of_older_programs_are_tools() -> None:
    function = {"name": "say", "parameters": {"type": "object"}}
    ask = read_chat({"messages": USER, "functions": [function], "function_call": {"name": "say"}})
    assert ask.has_functions and ask.chat.tools == [{"type": "function", "function": function}]
    assert ask.chat.tool_choice == {"type": "function", "function": {"name": "say"}}


@pytest.mark.parametrize(
    ("form", "schema", "is_strict"),
    [
        ({}, None, False),
        ({"type": "text"}, None, False),
        ({"type": "json_object"}, True, False),
        ({"type": "json_object", "schema": {"type": "array"}}, {"type": "array"}, False),  # llama-server's
        ({"type": "json", "value": {"type": "array"}}, {"type": "array"}, False),  # Text Generation Inference's
        (
            {"type": "json_schema", "json_schema": {"schema": {"type": "array"}, "strict": True}},
            {"type": "array"},
            True,
        ),
        ({"type": "json_schema", "schema": {"type": "array"}}, {"type": "array"}, False),  # the Responses API's
    ],
)
def test_forms_of_answers(form: dict[str, Any], schema: Any, is_strict: bool) -> None:
    assert answer_form(form, "response_format") == (schema, is_strict)


def test_two_forms_conflict_and_the_second_is_named() -> None:
    with pytest.raises(GatewayError) as caught:
        wanted_form({"response_format": {"type": "json_object"}, "guided_regex": "a+"})
    assert caught.value.param == "guided_regex"


@pytest.mark.parametrize(
    ("body", "n"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 3}, 3),
        ({"n_probs": 4}, 4),
        ({"n_probs": 0}, None),
    ],
)
def test_how_many_alternatives_are_told(body: dict[str, Any], n: int | None) -> None:
    assert read_logprobs(body) == n


def test_what_an_answer_continues_is_repeated_where_its_client_wants_it() -> None:
    begun = [*USER, {"role": "assistant", "content": "Once"}]
    wish: dict[str, Any] = {"messages": begun, "continue_final_message": True, "echo": True}
    assert read_chat(wish).echo == "Once"
    assert read_chat({**wish, "continue_final_message": "reasoning_content"}).echo == ""
    assert read_chat({**wish, "echo": False}).echo == ""
