"""Thoughts are found and counted, whatever tokens their tags consist of."""

from __future__ import annotations

import pytest

from uma_core.session.reasoning import Thinking
from uma_core.types import Reasoning

TAGS = Reasoning("<think>", "</think>")


def counted(pieces: list[str], tail: str = "", wanted: Reasoning = TAGS) -> tuple[int, bool]:
    thinking = Thinking(wanted, tail.encode())
    for piece in pieces:
        thinking.push(piece.encode())
    return thinking.n_tokens, thinking.is_inside


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["<think>", "a", "b", "</think>", "c", "d"], (2, False)),
        (["<", "think", ">", "a", "</", "th", "ink>", "c"], (1, False)),
        (list("<think>ab</think>cd"), (2, False)),
        (["no", " thought"], (0, False)),
        (["<think>", "a", "b"], (2, True)),
        (["<think>", "a</think>b", "c"], (1, False)),
        (["<think>", "a", "</think>", "<think>", "b"], (1, False)),
    ],
)
def test_tokens_between_the_tags_are_counted(pieces: list[str], expected: tuple[int, bool]) -> None:
    assert counted(pieces) == expected


def test_an_empty_line_may_end_a_thought() -> None:
    wanted = Reasoning("", "\n\n")
    assert counted(["a", "\n", "b", "\n", "\n", "c"], wanted=wanted) == (3, False)
    assert counted(["a", "b"], wanted=wanted) == (2, True)
    assert counted(["a", "\n", "b", "\n\n"], wanted=Reasoning("\n", "\n\n")) == (1, False)


def test_a_template_may_begin_the_thought() -> None:
    assert counted(["a", "b", "</think>", "c"], tail="user\n<think>\n") == (2, False)
    assert counted(["a", "b"], tail="<think>old</think>\nassistant") == (0, False)
    assert counted(["a", "b", "</think>"], wanted=Reasoning("", "</think>")) == (2, False)


def test_long_thoughts_and_split_characters_are_counted() -> None:
    thinking = Thinking(TAGS, b"<think>")
    for byte in ("é" * 200).encode():
        thinking.push(bytes([byte]))
    assert thinking.n_tokens == 400
    thinking.push(b"</think>")
    assert (thinking.n_tokens, thinking.is_inside) == (400, False)
