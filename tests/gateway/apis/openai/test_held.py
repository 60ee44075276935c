"""Which log probabilities belong to an answer's content."""

from __future__ import annotations

import pytest

from uma_gateway.apis.openai.held import Held
from uma_gateway.chat.diff import Diff


def entries(*texts):
    return [{"bytes": list(text if isinstance(text, bytes) else text.encode())} for text in texts]


def told(found):
    return [bytes(entry["bytes"]) for entry in found]


@pytest.mark.parametrize(
    ("tokens", "diffs", "expected"),
    [
        (["<think>", "Hm", "</think>", "\n\n", "Yes"], [Diff(reasoning="Hm"), Diff(content="Yes")], [[], [b"Yes"]]),
        (["</think>", "t"], [Diff(content="t")], [[b"t"]]),
        (["a", "<to"], [Diff(content="a"), Diff(content="<to")], [[b"a"], [b"<to"]]),
        (["ab", "<"], [Diff(content="a"), Diff(content="b<")], [[b"ab"], [b"<"]]),
        (["\n", "Yes"], [Diff(content="Yes")], [[b"Yes"]]),
        ([b"\xf0\x9f", b"\x98\x80"], [Diff(content="\U0001f600")], [[b"\xf0\x9f", b"\x98\x80"]]),
        ([b"\xff"], [Diff(content="\N{REPLACEMENT CHARACTER}")], [[b"\xff"]]),
        (["{", "}"], [Diff(tool=0, tool_arguments="{}")], [[]]),
    ],
)
def test_what_is_told_are_the_tokens_of_the_content(tokens, diffs, expected):
    held = Held(entries(*tokens))
    assert [told(held.take(diff)) for diff in diffs] == expected
