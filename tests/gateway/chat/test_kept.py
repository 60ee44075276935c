"""Kept results are found by their texts. Neither the texts nor too many results stay in memory."""

from __future__ import annotations

import tracemalloc
import weakref

import pytest

from tests.gateway.chat.conftest import MESSAGES, templates
from uma_gateway.chat import kept as module
from uma_gateway.chat.kept import kept


class Text(str):
    """A text that a weak reference can point to."""


def test_a_result_is_made_once_for_the_same_texts() -> None:
    asked = []

    @kept
    def joined(*texts: str) -> str:
        asked.append(texts)
        return "+".join(texts)

    for texts in (("a", "bc"), ("ab", "c"), ("a", "bc"), ("é\ud800",), ("",)):
        assert joined(*texts) == "+".join(texts)
    assert asked == [("a", "bc"), ("ab", "c"), ("é\ud800",), ("",)]


def test_the_texts_go() -> None:
    text = Text("x" * 100)
    reference = weakref.ref(text)
    assert kept(lambda given: str(len(given)))(text) == "100"
    del text
    assert reference() is None


def test_results_are_kept_up_to_a_number_and_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "N_MOST", 3)
    monkeypatch.setattr(module, "N_CHARACTERS_MOST", 20)
    asked: list[str] = []

    @kept
    def doubled(text: str) -> str:
        asked.append(text)
        return text * 2

    def made(*texts: str) -> list[str]:
        asked.clear()
        for text in texts:
            assert doubled(text) == text * 2
        return asked

    assert made("a", "b", "c", "a", "d", "a", "b") == ["a", "b", "c", "d", "b"]
    assert made("large one", "large one", "a") == ["large one", "a"]
    assert made("too large for it", "too large for it") == ["too large for it"] * 2
    assert made("a", "a") == ["a"]


def test_schemas_that_are_refused_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "N_CHARACTERS_MOST", 1_000_000)
    n = 3_000_000
    templates("Qwen-Qwen3-0.6B").apply(MESSAGES, json_schema={"const": "x"})
    tracemalloc.start()
    try:
        for letter in "abc":
            templates("Qwen-Qwen3-0.6B").apply(MESSAGES, json_schema={"const": letter * n})
        assert tracemalloc.get_traced_memory()[0] < n
    finally:
        tracemalloc.stop()
