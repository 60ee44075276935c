"""Contents of `/tokenize`, read. test_completion.py asks the endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from uma_gateway.apis.llama.tokens import MOST_PARTS, _parts, _text_of
from uma_gateway.errors import GatewayError


@pytest.mark.parametrize(
    ("content", "parts"),
    [(None, []), ("", []), ("a", ["a"]), ([], []), (["a", "", 0, "b"], ["a", 0, "b"]), ([7], [7])],
)
def test_texts_and_token_ids_are_parts(content: Any, parts: list[str | int]) -> None:
    assert _parts(content) == parts


@pytest.mark.parametrize("content", [5, True, {}, [None], [True], [0.5], [["a"]], ["a"] * (MOST_PARTS + 1)])
def test_other_contents_are_named(content: Any) -> None:
    with pytest.raises(GatewayError) as caught:
        _parts(content)
    assert caught.value.param == "content"


def test_a_piece_that_is_half_a_character_is_a_text_too() -> None:
    assert (_text_of("a"), _text_of([0xC3]), _text_of([0xC3, 0xA9])) == ("a", "\ufffd", "é")
