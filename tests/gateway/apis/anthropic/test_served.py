"""Conversations in which Anthropic's servers ran something go on here."""

from __future__ import annotations

import pytest
from anthropic.types.beta import BetaContentBlockParam
from pydantic import TypeAdapter

from tests.gateway.apis.anthropic.test_request import HELLO, read
from uma_gateway.errors import GatewayError

ASK = {"type": "server_tool_use", "id": "s1", "name": "run", "input": {"x": 1}}
PAGE = {"type": "text", "media_type": "text/plain", "data": "Sun all day"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}


def served(*blocks):
    """Return the messages between two of the user."""
    return read(messages=[*HELLO, {"role": "assistant", "content": list(blocks)}, *HELLO]).messages[1:-1]


def fetched(source):
    document = {"type": "document", "title": "Weather", "source": source}
    return {"type": "web_fetch_result", "url": "https://a.example", "content": document}


def ran(kind, **fields):
    return {"type": f"{kind}_result", "content": [], "return_code": 0, "stdout": "", "stderr": "", **fields}


RESULTS = [
    ("web_fetch", fetched(PAGE), "https://a.example\nWeather\nSun all day"),
    ("web_fetch", fetched(PDF), "https://a.example\nWeather"),
    ("web_fetch", {"type": "web_fetch_tool_result_error", "error_code": "url_not_allowed"}, "Error: url_not_allowed"),
    ("code_execution", ran("code_execution", stdout="4\n"), "4"),
    (
        "code_execution",
        {
            "type": "encrypted_code_execution_result",
            "encrypted_stdout": "xyz",
            "stderr": "",
            "return_code": 0,
            "content": [],
        },
        "(no text)",
    ),
    ("bash_code_execution", ran("bash_code_execution", stdout="a", stderr="b"), "a\nb"),
    (
        "text_editor_code_execution",
        {"type": "text_editor_code_execution_view_result", "content": "x = 1", "file_type": "text"},
        "x = 1",
    ),
    ("advisor", {"type": "advisor_result", "text": "Look again."}, "Look again."),
    ("mcp", "Sun", "Sun"),
    ("mcp", [{"type": "text", "text": "Sun"}], "Sun"),
]


@pytest.mark.parametrize(("kind", "content", "told"), RESULTS)
def test_the_model_sees_the_text_of_a_result(kind, content, told):
    result = {"type": f"{kind}_tool_result", "tool_use_id": "s1", "content": content}
    TypeAdapter(BetaContentBlockParam).validate_python(result)  # it is as the package's types say
    call, answer = served(ASK, result)
    assert call["tool_calls"][0]["function"] == {"name": "run", "arguments": '{"x":1}'}
    assert answer == {"role": "tool", "tool_call_id": "s1", "name": "run", "content": told}


def test_texts_before_and_after_a_call_are_messages_of_their_own():
    before, after = {"type": "text", "text": "I'll ask."}, {"type": "text", "text": "Sun."}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    ask = {"type": "mcp_tool_use", "id": "m1", "name": "weather", "server_name": "a", "input": {}}
    result = {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": True, "content": "no such city"}
    call, answer, said = served(thought, before, ask, result, after)
    assert (call["content"], call["reasoning_content"]) == ("I'll ask.", "Hm.")
    assert answer["content"] == "Error: no such city"
    assert said == {"role": "assistant", "content": "Sun."}


def test_a_call_of_the_client_s_keeps_its_result():
    use = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}
    ran = {"type": "mcp_tool_result", "tool_use_id": "gone", "content": "Sun"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "Rain"}
    messages = [*HELLO, {"role": "assistant", "content": [use, ran]}, {"role": "user", "content": [result]}]
    chat = read(messages=messages)
    assert [message.get("name") for message in chat.messages] == [None, None, "mcp", None, "get_weather"]
    assert [len(message.get("tool_calls", ())) for message in chat.messages] == [0, 1, 0, 1, 0]


def test_a_turn_that_paused_after_a_result_is_answered():
    result = {"type": "mcp_tool_result", "tool_use_id": "s1", "content": "Sun"}
    chat = read(messages=[*HELLO, {"role": "assistant", "content": [ASK, result]}])
    assert chat.messages[-1]["role"] == "tool" and not chat.continue_final_message


def test_other_blocks_are_refused():
    with pytest.raises(GatewayError) as caught:
        served({"type": "container_upload", "file_id": "f"})
    assert caught.value.status == 501
