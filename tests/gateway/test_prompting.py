"""From a conversation to what the daemon is asked."""

from __future__ import annotations

import pytest

from tests.gateway.chat.conftest import apply
from uma_gateway.chat.templates import Thinking
from uma_gateway.prompting import behind_thought

CHOICES = {"choices": ["left", "right"]}


@pytest.mark.parametrize("thinking", [None, Thinking("<think>", "</think>", is_open=False)])
def test_a_constraint_holds_for_the_whole_answer_where_no_thought_is_begun(thinking):
    assert behind_thought(CHOICES, thinking) == CHOICES


def test_a_constraint_holds_behind_a_thought_that_the_template_begins(tiny):
    """As the daemon reads it: the thought is free, what follows it is not."""
    thinking = apply("Qwen3.5-4B", "tools").thinking
    assert thinking is not None and thinking.is_open
    events = tiny.generate(
        "Think.", constraint=behind_thought(CHOICES, thinking), max_tokens=60, temperature=0, stream=False,
        reasoning={"start": "", "end": "</think>", "budget_tokens": 5},
    )  # fmt: skip
    thought, _, answer = events[-1]["text"].partition("</think>")
    assert thought and answer in CHOICES["choices"] and events[-1]["reason"] == "stop"
