"""Anthropic's requests, as OpenAI has them."""

from __future__ import annotations

import pytest

from uma_gateway.apis.anthropic.request import read_request
from uma_gateway.errors import GatewayError

HELLO = [{"role": "user", "content": "Hello"}]


WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


TIMER = {
    "name": "set_timer",
    "description": "Set a timer",
    "input_schema": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
}


ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


COLD = {"temperature": 0}  # the client has no argument for the temperature


def ask(**fields):
    return {"model": "any", "messages": HELLO, "max_tokens": 12, "extra_body": COLD, **fields}


def read(**fields):
    return read_request(ask(**fields)).chat


def test_blocks_become_messages_as_openai_has_them():
    chat = read(
        system=[
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be kind."},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "Sun"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    )
    system, user, assistant, result, more = chat.messages
    assert system == {"role": "system", "content": "Be brief.\n\nBe kind."}
    assert user == {"role": "user", "content": "Hi"}
    assert (assistant["content"], assistant["reasoning_content"]) == ("Let me see.", "Hm.")
    assert assistant["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    assert result == {"role": "tool", "tool_call_id": "t1", "name": "get_weather", "content": "Error: Sun"}
    assert more == {"role": "user", "content": "And?"}


def test_a_conversation_in_which_anthropics_servers_searched_goes_on_here():
    found = {"type": "web_search_result", "title": "T", "url": "https://a.example", "encrypted_content": "xyz"}
    answer = [
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "I'll look. "},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "weather"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [found]},
        {"type": "text", "text": "Sun.", "citations": None},
    ]
    chat = read(messages=[*HELLO, {"role": "assistant", "content": answer}, *HELLO])
    assert chat.messages[1] == {"role": "assistant", "content": "I'll look. Sun."}


@pytest.mark.parametrize(
    "header", ["x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;", "x-anthropic-billing-header: other"]
)
@pytest.mark.parametrize("as_blocks", [True, False])
def test_changing_billing_lines_are_no_part_of_the_prompt(header, as_blocks):
    system = (
        [{"type": "text", "text": header}, {"type": "text", "text": "Be brief."}]
        if as_blocks
        else f"{header}\nBe brief."
    )
    assert read(system=system).messages[0] == {"role": "system", "content": "Be brief."}


def test_choices_thinking_and_forms():
    tools = [WEATHER, {"type": "web_search_20250305", "name": "web_search"}]
    chat = read(tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert [tool["function"]["name"] for tool in chat.tools] == ["get_weather"]
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("required", False)
    assert (
        read(tools=tools, tool_choice={"type": "tool", "name": "get_weather"}).tool_choice["function"]["name"]
        == "get_weather"
    )
    assert not read().enable_thinking and read(thinking={"type": "adaptive"}).enable_thinking
    assert not read(thinking={"type": "between_tools"}).enable_thinking
    assert read(thinking={"type": "enabled", "budget_tokens": 64}).reasoning_budget == 64
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert read(output_config={"format": {"type": "json_schema", "schema": schema}}).json_schema == schema
    assert read(messages=[*HELLO, {"role": "assistant", "content": "The sky"}]).continue_final_message is True


DATA = {"type": "text", "media_type": "text/plain", "data": "x"}


PIECES = {"type": "content", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"type": "document", "source": DATA}, "x"),
        ({"type": "document", "title": "T", "context": "Of 1999", "source": DATA}, "T\nOf 1999\nx"),
        ({"type": "document", "title": None, "context": None, "source": PIECES}, "x\ny"),
        ({"type": "document", "source": {"type": "content", "content": "x"}}, "x"),
        (
            {
                "type": "search_result",
                "title": "T",
                "source": "https://a.example",
                "content": [{"type": "text", "text": "x"}],
            },
            "T\nhttps://a.example\n\nx",
        ),
    ],
)
def test_the_model_sees_all_text_of_documents_and_of_search_results(block, told):
    (message,) = read(messages=[{"role": "user", "content": [block]}]).messages
    assert message["content"] == told


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "document", "title": 5, "source": DATA}]}]},
        {"messages": [{"role": "user", "content": [{"type": "search_result", "title": [], "content": []}]}]},
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "content"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "never", "content": "x"}]}]},
        {"tools": [{"name": "x"}]},
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}},
        {"tool_choice": {"type": "any"}},
        {"thinking": {"type": "much"}},
        {"thinking": {"type": "enabled"}},
        {"mcp_servers": [{"type": "url", "url": "https://mcp.example.org", "name": "x"}]},
        {"output_config": {"format": {"type": "xml"}}},
    ],
)
def test_malformed_requests_are_refused(fields):
    with pytest.raises(GatewayError):
        read(**fields)


def test_a_block_that_cannot_be_read_is_named_by_its_place():
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    content = [{"type": "tool_result", "tool_use_id": "t"}, {"type": "text", "text": "look"}, {"type": "image"}]
    messages = [*HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": content}]
    with pytest.raises(GatewayError, match=r"messages\.2\.content\.2: blocks of type image"):
        read(messages=messages)


SEARCH = {"name": "ToolSearch", "input_schema": {"type": "object"}}


DEFERRED = {**TIMER, "defer_loading": True}


def searched(*names):
    """Return the messages of the model's search for tools, with the tools that it found."""
    references = [{"type": "tool_reference", "tool_name": name} for name in names]
    return [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ToolSearch", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": references}]},
    ]


def found(*names, **fields):
    """Return a conversation in which a search found tools."""
    tools = [DEFERRED, SEARCH, {**WEATHER, "defer_loading": True}]
    return read(tools=tools, messages=[*HELLO, *searched(*names)], **fields)


def shown(chat):
    return [tool["function"]["name"] for tool in chat.tools]


def changed(*messages):
    """Return the tools of a conversation with such system messages."""
    return shown(
        read(
            tools=[WEATHER, DEFERRED],
            messages=[*HELLO, *({"role": "system", "content": blocks} for blocks in messages)],
        )
    )


def change(kind, **tool):
    return {"type": f"tool_{kind}", "tool": {"type": "tool_reference", **tool}}


def test_a_deferred_tool_is_shown_once_a_result_refers_to_it():
    assert shown(found()) == ["ToolSearch"]
    chat = found("get_weather")
    assert shown(chat) == ["ToolSearch", "get_weather"]  # last: the prompt begins as before
    assert "get_weather" in chat.messages[-1]["content"] and chat.messages[-1]["role"] == "tool"
    assert shown(found("get_weather", "set_timer", "get_weather")) == ["ToolSearch", "get_weather", "set_timer"]
    assert found("set_timer", tool_choice={"type": "tool", "name": "set_timer"}).tool_choice["type"] == "function"
    with pytest.raises(GatewayError, match="Tool reference 'other' not found"):
        found("other")
    with pytest.raises(GatewayError, match="there is no tool set_timer"):
        found(tool_choice={"type": "tool", "name": "set_timer"})


def test_nothing_is_deferred_where_anthropic_s_servers_were_to_search():
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    assert shown(read(tools=[search, DEFERRED, WEATHER])) == ["set_timer", "get_weather"]


def test_messages_of_the_system_add_and_remove_tools():
    assert changed() == ["get_weather"]
    assert changed([change("addition", name="set_timer")]) == ["get_weather", "set_timer"]
    assert changed([change("removal", name="get_weather")], [change("addition", name="set_timer")]) == ["set_timer"]
    inline = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": SEARCH}}
    assert changed([inline, {"type": "text", "text": "Search."}]) == ["get_weather", "ToolSearch"]
    chat = read(tools=[DEFERRED], messages=[*HELLO, {"role": "system", "content": [inline]}])
    assert chat.messages == HELLO  # no message is added
    with pytest.raises(GatewayError, match=r"messages\.1\.content\.0"):
        changed([change("addition", name="other")])
    with pytest.raises(GatewayError, match="mcp_tool_reference"):
        changed([change("addition", name="x", server_name="y", type="mcp_tool_reference")])
    with pytest.raises(GatewayError, match="at least one message"):
        read(messages=[{"role": "system", "content": []}])


def test_a_message_of_the_system_may_be_for_one_turn():
    note = {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}
    answered = [*HELLO, note, {"role": "assistant", "content": "Hi."}]
    assert [message["role"] for message in read(messages=[*HELLO, note]).messages] == ["user", "system"]
    assert [message["role"] for message in read(messages=answered).messages] == ["user", "system", "assistant"]
    assert [message["role"] for message in read(messages=[*answered, *HELLO]).messages] == ["user", "assistant", "user"]
    kept = [*HELLO, {**note, "clear_at": "never"}, *HELLO]
    assert [message["role"] for message in read(messages=kept).messages] == ["user", "system", "user"]
    with pytest.raises(GatewayError, match="clear_at"):
        read(messages=[*HELLO, {**note, "clear_at": "later"}])


def test_a_message_of_the_system_sets_the_effort_of_its_turn():
    def effort(*messages):
        chat = read(messages=[*HELLO, *messages], output_config={"effort": "high"})
        assert not any(message["role"] == "system" for message in chat.messages)
        return chat.template_kwargs["reasoning_effort"]

    wish = {"role": "system", "output_config": {"effort": "low"}}
    call = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "Sun"}
    turn = [wish, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert effort() == "high"
    assert effort({**wish, "content": []}) == effort(wish) == effort(*turn) == "low"
    assert effort(*turn, *HELLO) == "high"


def test_sets_of_tools_have_no_name():
    assert shown(read(tools=[{"type": "browser_toolset_20260801"}, WEATHER])) == ["get_weather"]
