"""Conversations as clients send them: what is read, what is refused, and what stays unchanged."""

from __future__ import annotations

import pytest

from tests.gateway.chat.conftest import templates
from uma_gateway.chat.errors import ChatError
from uma_gateway.errors import GatewayError, Kind
from uma_gateway.prompting import Chat, _apply
from uma_gateway.turns import merged, read_messages

USER = {"role": "user", "content": "hi"}


def call(arguments):
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def arguments_of(message):
    return [each["function"]["arguments"] for each in message["tool_calls"]]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi", "name": None},
        {"role": "assistant", "content": "yes", "reasoning_content": None, "tool_calls": None, "audio": None},
        {"role": "tool", "content": "5", "tool_call_id": None},
    ],
)
def test_null_means_absent(message):
    (found,) = read_messages([message])
    assert found == {name: value for name, value in message.items() if value is not None}


@pytest.mark.parametrize(
    ("given", "thought"),
    [
        ({"reasoning": "hm"}, "hm"),
        ({"reasoning": "hm", "reasoning_content": "well"}, "well"),
        ({"reasoning": {"effort": "low"}}, None),
        ({"reasoning": None}, None),
    ],
)
def test_a_thought_may_be_written_as_vllm_does(given, thought):
    (found,) = read_messages([{"role": "assistant", "content": "yes", **given}])
    assert found.get("reasoning_content") == thought


@pytest.mark.parametrize("more", [{}, {"type": None}])
def test_a_call_without_a_type_is_one_of_a_function(more):
    given = {name: value for name, value in call("{}").items() if name != "type"}
    (found,) = read_messages([{"role": "assistant", "tool_calls": [{**given, **more}]}])
    assert found["tool_calls"] == [call("{}")]


def test_an_answer_that_only_called_tools_has_no_content():
    message = {"role": "assistant", "content": None, "tool_calls": [{**call("{}"), "index": None}]}
    assert read_messages([message]) == [{"role": "assistant", "content": None, "tool_calls": [call("{}")]}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        (None, "{}"),
        ('{"path": "/tm', '{"":"{\\"path\\": \\"/tm"}'),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_of_a_call_that_was_cut_off_are_kept_as_text(given, expected):
    message = {"role": "assistant", "content": None, "tool_calls": [call(given)]}
    assert arguments_of(read_messages([message])[0]) == [expected]
    assert arguments_of(message) == [given]  # the caller's object is not changed


def test_a_refusal_is_a_text_that_the_assistant_wrote():
    message = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}
    assert read_messages([message])[0]["content"] == [{"type": "text", "text": "I will not."}]


@pytest.mark.parametrize(
    ("messages", "kind", "param"),
    [
        ([], Kind.INVALID, "messages"),
        (["hi"], Kind.INVALID, "messages[0]"),
        ([USER, {"content": "x"}], Kind.INVALID, "messages[1].role"),
        ([USER, {"role": "wizard", "content": "x"}], Kind.INVALID, "messages[1].role"),
        ([{"role": "user", "content": None}], Kind.INVALID, "messages[0].content"),
        ([{"role": "user", "content": 5}], Kind.INVALID, "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], Kind.INVALID, "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], Kind.NOT_SUPPORTED, "messages[0].content"),
        ([{"role": "user", "content": "x", "tool_calls": 5}, USER], Kind.INVALID, "messages[0].tool_calls"),
        ([{"role": "assistant", "reasoning_content": 5}], Kind.INVALID, "messages[0].reasoning_content"),
        ([{"role": "user", "content": "x", "name": 7}], Kind.INVALID, "messages[0].name"),
        ([{"role": "tool", "content": "x", "tool_call_id": [5]}], Kind.INVALID, "messages[0].tool_call_id"),
        ([{"role": "assistant", "tool_calls": [None]}], Kind.INVALID, "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": ["f"]}], Kind.INVALID, "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], Kind.INVALID, "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": "f"}]}],
            Kind.INVALID,
            "messages[0].tool_calls[0].function",
        ),
        ([{"role": "assistant", "tool_calls": [{"id": 5}]}], Kind.INVALID, "messages[0].tool_calls[0].id"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}],
            Kind.INVALID,
            "messages[0].tool_calls[0].function.name",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}],
            Kind.INVALID,
            "messages[0].tool_calls[0].function.name",
        ),
    ],
)
def test_the_message_at_fault_is_named(messages, kind, param):
    with pytest.raises(GatewayError) as caught:
        read_messages(messages)
    assert (caught.value.kind, caught.value.param) == (kind, param)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_roles_of_conversations_are_known(role):
    assert read_messages([{"role": role, "content": "x"}])[0]["role"] == role


def test_a_role_of_the_template_s_own_is_known():
    messages = [{"role": "wizard", "content": "x"}]
    assert read_messages(messages, "{% if message.role == 'wizard' %}") == messages


def test_where_the_template_insists_on_turns_neighbours_are_one_message():
    messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    strict, free = templates("mistralai-Mistral-Nemo-Instruct-2407"), templates("Qwen-Qwen2.5-7B-Instruct")
    assert "one\n\ntwo" in _apply(strict, Chat(messages), messages).prompt
    assert "one\n\ntwo" not in _apply(free, Chat(messages), messages).prompt
    wrong = [{"role": "assistant", "content": "one"}, {"role": "user", "content": "two"}]
    with pytest.raises(ChatError):
        _apply(strict, Chat(wrong), wrong)


def test_neighbours_of_one_role_are_merged_and_results_of_tools_are_not():
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call("{}")]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "tool", "content": "2", "tool_call_id": "c2"},
    ]
    assert merged(messages) == [
        messages[0],
        {"role": "user", "content": "one\n\ntwo"},
        {"role": "assistant", "content": "a", "tool_calls": [call("{}")]},
        *messages[5:],
    ]
    assert messages[1]["content"] == "one"


def test_calls_and_results_in_the_older_form_are_those_of_tools():
    call = {"name": "f", "arguments": '{"a": 1}'}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "function_call": call, "tool_calls": None},
        {"role": "function", "name": "f", "content": "2"},
    ]
    _, called, result = read_messages(messages)
    assert called["tool_calls"] == [{"id": "call_1", "type": "function", "function": call}]
    assert "function_call" not in called
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "call_1", "2")
