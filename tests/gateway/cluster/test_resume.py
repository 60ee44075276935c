"""The request that continues an answer whose daemon was lost."""

from __future__ import annotations

from typing import Any

import pytest

from uma_gateway.cluster.resume import can_resume, resumed


@pytest.mark.parametrize(
    ("fields", "can"),
    [
        ({"prompt": "p"}, True),
        ({"prompt": "p", "constraint": {"grammar": "g"}}, True),
        ({"prompt": "p", "constraint": {"grammar": "g", "triggers": ["<"]}}, False),
        ({"prompt": "p", "n": 2}, False),
        ({"prompt": "p", "stream": False}, False),
        ({"messages": []}, False),
    ],
)
def test_only_what_can_be_told_by_its_text_is_continued(fields: dict[str, Any], can: bool) -> None:
    assert can_resume(fields) == can


def test_a_thought_that_goes_on_has_what_is_left_of_its_budget() -> None:
    request = {"prompt": "p", "reasoning": {"start": "", "end": "</think>", "budget_tokens": 10}}
    assert resumed(request, ["abcd"], "abcd", 4)["reasoning"]["budget_tokens"] == 6
    request["reasoning"]["start"] = "<>"  # type: ignore[index]
    assert resumed(request, ["<>abcd"], "<>abcd", 6)["reasoning"]["budget_tokens"] == 6
    assert resumed(request, ["<>" + "a" * 98], "<>" + "a" * 98, 100)["reasoning"]["budget_tokens"] == 0


@pytest.mark.parametrize(
    ("text", "n_tokens", "message", "end"),
    [
        ("abcd", 4, " Enough.", "</think>"),  # the budget is not used up: nothing was forced yet
        ("abcdefgh", 8, " Enough.", "</think>"),
        ("abcdefgh En", 10, "ough.", "</think>"),
        ("abcdefgh Enough.", 11, "", "</think>"),
        ("abcdefgh Enough.</", 12, "", "think>"),
    ],
)
def test_what_cuts_a_thought_off_is_said_once(text: str, n_tokens: int, message: str, end: str) -> None:
    thought = {"start": "", "end": "</think>", "budget_tokens": 8, "message": " Enough."}
    left = resumed({"prompt": "p", "reasoning": thought}, [text], text, n_tokens)["reasoning"]
    assert (left["message"], left["end"]) == (message, end)


def test_a_thought_goes_on_only_while_it_is_not_finished() -> None:
    request = {"prompt": "p", "reasoning": {"start": "<think>", "end": "</think>"}}
    assert resumed(request, ["<think>a"], "<think>a", 2)["reasoning"] == {"start": "", "end": "</think>"}
    assert "reasoning" not in resumed(request, ["<think>a</think>b"], "<think>a</think>b", 2)
    request["reasoning"] = {"start": "<think>\n", "end": "\n</think>\n"}  # compared without the white space around them
    assert resumed(request, ["<think>a"], "<think>a", 2)["reasoning"]["start"] == ""
    assert "reasoning" not in resumed(request, ["<think>a</think>b"], "<think>a</think>b", 2)
    assert resumed(request, ["\n"], "\n", 1)["reasoning"] == request["reasoning"], "it may begin yet"
    request["reasoning"] = {"start": "", "end": "\n\n"}  # an empty line may end a thought
    assert resumed(request, ["a\n"], "a\n", 2)["reasoning"]["end"] == "\n\n"
    assert "reasoning" not in resumed(request, ["a\n\nb"], "a\n\nb", 3)


@pytest.mark.parametrize("prompt", ["hi<think>\n", ["hi", 7, "<think>\n"], "<think></think><think>"])
def test_a_thought_that_the_prompt_began_goes_on(prompt: Any) -> None:
    """Some templates begin the thought, so the text that was sent does not include its start."""
    thought = {"start": "<think>", "end": "</think>", "budget_tokens": 10}
    request = {"prompt": prompt, "reasoning": thought}
    assert resumed(request, ["abcd"], "abcd", 4)["reasoning"] == {**thought, "start": "", "budget_tokens": 6}
    assert "reasoning" not in resumed(request, ["a</think>b"], "a</think>b", 3)
    request["prompt"] = "<think>\n\n</think>\n"
    assert resumed(request, ["abcd"], "abcd", 4)["reasoning"] == thought, "the template ended it, too"
