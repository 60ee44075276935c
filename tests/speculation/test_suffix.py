"""Matches, compared with those of a search through the whole text."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from uma_core.session.draft import Agreement
from uma_core.speculation.suffix import Cursor, SuffixText


def extended(text: SuffixText, *tokens: int) -> None:
    text.extend(np.array(tokens, np.int32))


def longest_earlier(tokens: list[int]) -> int:
    n = len(tokens)
    return max((k for k in range(n) if any(tokens[i : i + k] == tokens[n - k :] for i in range(n - k))), default=0)


def longest_within(text: list[int], other: list[int]) -> int:
    n = len(other)
    return max(k for k in range(n + 1) if any(text[i : i + k] == other[n - k :] for i in range(len(text) - k + 1)))


@given(st.lists(st.integers(0, 3), max_size=50))
def test_the_longest_earlier_place_of_the_end(tokens: list[int]) -> None:
    text = SuffixText()
    for i, token in enumerate(tokens, 1):
        extended(text, token)
        n_match, position = text.match()
        assert n_match == longest_earlier(tokens[:i])
        assert not n_match or (position < i and tokens[position - n_match : position] == tokens[i - n_match : i])


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=60), st.lists(st.integers(0, 3), max_size=40), st.integers(0, 99)
)
def test_a_cursor_follows_while_the_text_grows(tokens: list[int], other: list[int], seed: int) -> None:
    rng = random.Random(seed)
    text, n = SuffixText(), len(tokens) // 2
    extended(text, *tokens[:n])
    cursor = Cursor(text)
    for i, token in enumerate(other, 1):
        cursor.follow(token)
        assert cursor.n_match == longest_within(tokens[:n], other[:i])
        k, at = cursor.n_match, cursor.position
        assert tokens[at - k : at] == other[i - k : i]
        if n < len(tokens) and rng.random() < 0.5:
            extended(text, tokens[n])
            n += 1


def test_the_latest_place_is_told() -> None:
    text = SuffixText()
    extended(text, 1, 2, 9, 1, 2, 8, 1, 2)
    assert text.match() == (2, 5)
    assert text.read(5, 2, 3)[0] == [8, 1, 2]


def test_two_places_that_differ_are_told() -> None:
    text = SuffixText()
    extended(text, 1, 2, 7, 9, 5, 1, 2, 7, 8, 6, 1, 2)
    n_match, position = text.match()
    assert (n_match, position) == (2, 7)
    assert text.read(position, n_match, 4) == (
        [7, 8, 6, 1],
        [Agreement.SAME, Agreement.DIFFERENT, Agreement.ONE, Agreement.ONE],
    )


def test_a_place_that_was_the_first_is_the_only_one() -> None:
    text = SuffixText()
    extended(text, 2, 7, 1, 2, 7, 8, 1, 2)
    assert text.match() == (2, 4)
    assert text.read(4, 2, 2) == ([7, 8], [Agreement.ONE] * 2), "before it only 2 occurred, not 1, 2"
    assert text.read(4, 1, 2) == ([7, 8], [Agreement.SAME, Agreement.DIFFERENT])


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 9))
def test_what_is_told_of_a_second_place_is_so(tokens: list[int], n_most: int) -> None:
    text = SuffixText()
    extended(text, *tokens)
    n_match, position = text.match()
    if not n_match:
        return
    read, agreement = text.read(position, n_match, n_most)
    assert read == tokens[position : position + n_most]
    followers = [
        tokens[at:]
        for at in range(n_match, position)
        if tokens[at - n_match : at] == tokens[position - n_match : position]
    ]
    n_same = (
        agreement.index(Agreement.DIFFERENT) if Agreement.DIFFERENT in agreement else agreement.count(Agreement.SAME)
    )
    assert agreement[:n_same] == [Agreement.SAME] * n_same
    assert set(agreement[n_same + 1 :]) <= {Agreement.ONE}
    if agreement and agreement[0] is not Agreement.ONE:
        assert any(each[:n_same] == read[:n_same] for each in followers)
    if agreement[n_same : n_same + 1] == [Agreement.DIFFERENT]:
        assert any(each[:n_same] == read[:n_same] and each[n_same] != read[n_same] for each in followers)


def test_no_match_and_no_reading_crosses_a_separator() -> None:
    text = SuffixText()
    extended(text, 1, 2, 3, -1, 4, 5, -2)
    cursor = Cursor(text)
    for token in (2, 3, 4):
        cursor.follow(token)
    assert cursor.n_match == 1 and text.read(1, 1, 9)[0] == [2, 3]
