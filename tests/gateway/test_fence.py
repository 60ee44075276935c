"""JSON beside tools: the constraint allows fences, and clients parse the content."""

from __future__ import annotations

import pytest

from tests.gateway.chat.conftest import NAMES, apply
from tests.gateway.chat.test_constraint import FENCED, JSON_ANSWER, Follower, thought
from uma_gateway.chat.diff import Diff, Message
from uma_gateway.chat.parser import Parser
from uma_gateway.fence import Unfenced
from uma_gateway.parsing import Plain, whole

FENCE = f"```json\n{JSON_ANSWER}\n```"


def content(text: str, step: int) -> str:
    """Read a text in pieces of this many characters."""
    parser, message = Unfenced(Plain()), Message()
    for i in range(0, len(text), step):
        for diff in parser.feed(text[i : i + step]):
            assert diff.content
            message.add(diff)
    for diff in parser.feed("", is_final=True):
        message.add(diff)
    return message.content


@pytest.mark.parametrize("step", [1, 2, 3, 5, 500])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('\n```json {"a":\n 1}```\n', '{"a":\n 1}'),
        ('```json{"a": "```sh\n ` `` ```\n"} ```', '{"a": "```sh\n ` `` ```\n"}'),
        (' {"a": "```json"}\n', ' {"a": "```json"}\n'),
        ('{"a": "```"}\n```', '{"a": "```"}\n```'),
        ("```js\nf()\n```", "```js\nf()\n```"),
        ("``", "``"),
        ("\n", "\n"),
        ("", ""),
        ("```json\n", "```json\n"),
        ('```json\n{"a": "x `` ', '{"a": "x `` '),
        ('```json\n{"a": 1}\n``', '{"a": 1}\n``'),
    ],
)
def test_only_a_fence_around_the_whole_is_taken_off(text: str, shown: str, step: int) -> None:
    """What an answer that was cut off may still have meant is shown."""
    assert content(text, step) == shown


def test_json_streams_while_its_fence_is_open() -> None:
    parser = Unfenced(Plain())
    told = ["".join(diff.content for diff in parser.feed(piece)) for piece in ("```", "json\n", '{"a"', ": 1", "}\n")]
    assert told == ["", "", '{"a"', ": 1", "}"]


class Calling:
    """A parser that finds a call after a text, and a thought before it."""

    def feed(self, text: str, is_final: bool = False) -> list[Diff]:
        return [Diff(reasoning="Hm."), Diff(text), Diff("", "", 0, "id", "f", "{}")]


def test_a_call_comes_after_the_text_before_it() -> None:
    assert Unfenced(Calling()).feed("``", is_final=True) == Calling().feed("``")


@pytest.mark.parametrize("name", [name for name in NAMES if "Cohere" not in name])
def test_fences_that_a_constraint_allows_are_taken_off(name: str) -> None:
    applied = apply(name, "json-and-tools")
    start = {"meetkai-functionary-medium-v3.2": "all\n", "openai-gpt-oss-120b": "<|channel|>final<|message|>"}
    text = thought(applied) + start.get(name, "") + FENCE
    follower = Follower(applied.constraint)
    if follower.take(text) == "" and follower.can_end():
        assert whole(Unfenced(Parser(applied)), text).content == JSON_ANSWER
    else:
        assert not any(part in name for part in FENCED)
