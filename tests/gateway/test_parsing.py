"""Answers of models that have no parser."""

from __future__ import annotations

from uma_gateway.parsing import Plain, whole


def test_all_text_is_content() -> None:
    parser = Plain()
    assert [diff.content for diff in parser.feed("<think>a")] == ["<think>a"]
    assert parser.feed("") == [] and parser.feed("", is_final=True) == []
    assert whole(Plain(), "<tool_call>").content == "<tool_call>"
