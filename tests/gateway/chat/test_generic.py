"""Conversations with tools as plain text, for models whose template has none."""

from __future__ import annotations

import json
from typing import Any

from uma_gateway.chat.generic import END, START, told, without_calls

TOOLS = [{"type": "function", "function": {"name": "look", "description": "Schaut nach «x»"}}]
USER = {"role": "user", "content": "Hi"}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_the_tools_are_told_after_what_the_system_says() -> None:
    system, user = told([{"role": "system", "content": "Be brief."}, USER], TOOLS, "auto")
    assert system["content"].startswith("Be brief.\n\n") and "Schaut nach «x»" in system["content"]
    assert user == USER
    alone, _ = told([USER], TOOLS, "required")
    assert alone["role"] == "system" and "must call" in alone["content"]


def test_calls_are_written_as_the_model_is_told_to_write_them() -> None:
    calls = [call("look", '{"a": 1}'), call('a"b', {"x": "é"})]
    (message,) = without_calls([{"role": "assistant", "content": "Wait.", "tool_calls": calls}])
    assert "tool_calls" not in message and message["content"].startswith(f"Wait.\n{START}")
    written = [part.partition(END)[0] for part in message["content"].split(START)[1:]]
    assert [json.loads(part) for part in written] == [
        {"name": "look", "arguments": {"a": 1}},
        {"name": 'a"b', "arguments": {"x": "é"}},
    ]


def test_results_and_what_the_user_says_next_are_one_message() -> None:
    """Many templates require the roles to alternate."""
    results = [{"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": str(i)}]} for i in range(2)]
    plain = without_calls([USER, {"role": "assistant", "tool_calls": [call("look", "{}")]}, *results, USER])
    assert [message["role"] for message in plain] == ["user", "assistant", "user"]
    assert plain[2]["content"].count("<tool_response>") == 2 and plain[2]["content"].endswith("Hi")


def test_what_was_not_a_call_stays_as_it_is() -> None:
    messages = [USER, USER, {"role": "assistant", "content": None}]
    assert without_calls(messages) == messages
