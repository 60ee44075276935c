"""The items of the Responses API, read and written."""

from __future__ import annotations

import json

import pytest

from tests.gateway.promised import adapter_of
from uma_gateway.apis.openai.items import (
    Names,
    Thoughts,
    all_kept,
    input_of,
    kept,
    output_items,
    read_input,
    read_tools,
    reference,
    to_messages,
)
from uma_gateway.chat.diff import Message, ToolCall
from uma_gateway.errors import GatewayError

ITEM = "openai.types.responses:ResponseItem"


def test_a_summary_is_read_where_nothing_was_encrypted():
    sent = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Look it up."}]}
    assert to_messages([sent])[0]["reasoning_content"] == "Look it up."


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"reasoning": "hm"}, [("reasoning", "incomplete")]),
        ({"reasoning": "hm", "content": "so"}, [("reasoning", "completed"), ("message", "incomplete")]),
        ({"content": "so", "n_calls": 1}, [("message", "completed"), ("function_call", "incomplete")]),
        ({"n_calls": 2}, [("function_call", "completed"), ("function_call", "incomplete")]),
        ({}, [("message", "incomplete")]),
    ],
)
def test_only_the_last_item_of_a_cut_answer_is_incomplete(message, told):
    calls = [ToolCall(id="c", name="f", arguments="{}") for _ in range(message.pop("n_calls", 0))]
    made = output_items(Message(tool_calls=calls, **message), "incomplete", Names([]), Thoughts())
    assert [(item["type"], item["status"]) for item in made] == told


def test_what_the_assistant_did_in_a_row_is_one_message():
    messages = to_messages(
        [
            {"role": "developer", "content": "Rules."},
            {"role": "user", "content": "Weather?"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Look it up."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "time", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hidden"}], "encrypted_content": "xyz"},
        ]
    )
    assert [message["role"] for message in messages] == ["developer", "user", "assistant", "tool", "tool"]
    assistant = messages[2]
    assert (assistant["reasoning_content"], assistant["content"]) == ("Look it up.", "Wait.")
    assert [call["function"]["name"] for call in assistant["tool_calls"]] == ["weather", "time"]
    assert [message["content"] for message in messages[3:]] == ["rain", "noon"]


@pytest.mark.parametrize("content", [None, 5, "x", [], [5], [{}], [{"type": "reasoning_text", "text": None}]])
def test_a_thought_that_says_nothing_readable_is_left_out(content):
    messages = to_messages([{"type": "reasoning", "content": content}, {"role": "user", "content": "hi"}])
    assert messages == [{"role": "user", "content": "hi"}]


def test_a_conversation_that_began_elsewhere_goes_on_here():
    """Codex keeps its history when the user changes the model."""
    user, asst, tool = to_messages(
        [
            {"role": "user", "content": "Fix it."},
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done."},
        ]
    )
    (call,) = asst["tool_calls"]
    assert (call["id"], json.loads(call["function"]["arguments"])) == ("c1", {"input": "*** Begin"})
    assert (user["content"], tool["tool_call_id"], tool["content"]) == ("Fix it.", "c1", "Done.")


def test_an_item_that_lacks_its_text_is_named():
    with pytest.raises(GatewayError) as caught:
        to_messages([{"type": "function_call_output", "output": "x"}])
    assert caught.value.param == "input[0].call_id"


@pytest.mark.parametrize("item", [{"role": "user", "content": "hi"}, {"type": "function_call", "name": "x"}])
def test_a_listed_item_has_an_id_and_a_type_where_its_client_wrote_null(item):
    listed = kept({"id": None, "type": None, **item})
    assert listed["id"] and listed["type"] == item.get("type", "message")


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "custom_tool_call", "name": "f", "input": "x", "call_id": "c"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]},
    ],
)
def test_a_listed_item_has_what_openai_s_type_requires(item):
    listed = kept(item)
    adapter_of(ITEM).validate_python(listed)
    assert to_messages([listed]) == to_messages([item])


@pytest.mark.parametrize(
    ("arguments", "given"),
    [('{"input": "a\\nb"}', "a\nb"), ('{"input": "a', '{"input": "a'), ('{"input": 3}', '{"input": 3}'), ("[]", "[]")],
)
def test_the_text_of_a_custom_tool(arguments, given):
    assert input_of(arguments) == given


@pytest.mark.parametrize(("value", "param"), [(None, "input"), ([], "input"), (5, "input"), (["x"], "input[0]")])
def test_an_input_that_is_none_is_named(value, param):
    with pytest.raises(GatewayError) as caught:
        read_input(value)
    assert caught.value.param == param


def test_a_continued_response_needs_no_input():
    assert read_input(None, is_continued=True) == read_input([], is_continued=True) == []


def test_a_reference_may_have_no_type():
    assert reference({"id": "msg_1"}, "input[0]") == reference({"type": "item_reference", "id": "msg_1"}, "") == "msg_1"
    assert reference({"id": "msg_1", "role": "user", "content": "x"}, "input[0]") is None


def test_no_two_listed_items_have_one_id():
    """A client that asks for the page after an id would ask for ever."""
    said = {"type": "message", "role": "user", "content": "x", "id": "msg_1"}
    listed = all_kept([said, said, {**said, "id": "msg_0"}], lambda item_id: item_id == "msg_0")
    ids = [item["id"] for item in listed]
    assert ids[0] == "msg_1" and len({*ids, "msg_0"}) == 4


def test_custom_tools_are_functions_of_one_text_and_tools_of_a_namespace_have_its_name():
    tools = [
        {"type": "web_search"},
        {"type": "custom", "name": "say"},
        {"type": "custom", "name": "form", "format": {"type": "grammar"}},
        {"type": "namespace", "name": "mouth", "tools": [{"type": "function", "name": "say", "parameters": {}}]},
    ]
    say, mouth = [tool["function"] for tool in read_tools(tools)]
    assert (say["name"], list(say["parameters"]["properties"])) == ("say", ["input"])
    assert mouth["name"] == "mouth__say"
    names = Names(tools)
    assert names.custom == {"say"} and names.told("mouth__say") == {"name": "say", "namespace": "mouth"}
