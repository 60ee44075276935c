"""Drafts for a text that repeats itself, and for a text that the client predicts."""

from __future__ import annotations

import numpy as np

from uma_core.speculation.acceptance import Acceptance
from uma_core.speculation.lookup import N_FEED, Lookup

PROMPT = np.arange(40, dtype=np.int32)


def test_a_repeated_beginning_is_continued() -> None:
    lookup = Lookup(PROMPT, (), Acceptance())
    assert not lookup.propose([90, 91], 4).tokens
    draft = lookup.propose([90, 91, 10, 11], 4)
    assert draft.tokens == (12, 13, 14, 15) and draft.n_match == 2
    assert list(draft.survival) == sorted(draft.survival, reverse=True)


def test_the_answer_itself_is_looked_in() -> None:
    lookup = Lookup(PROMPT, (), Acceptance())
    assert lookup.propose([70, 71, 72, 73, 70, 71], 2).tokens == (72, 73)


def test_what_is_forced_counts_as_said() -> None:
    lookup = Lookup(PROMPT, (), Acceptance())
    draft = lookup.propose([90], 2, forced=(10, 11))
    assert draft.tokens == (12, 13) and draft.n_match == 2
    assert lookup.propose([90, 10], 2, forced=(11,)).tokens == (12, 13), "one of them was drawn"
    assert lookup.propose([90, 10, 11, 12, 13], 2).tokens == (14, 15)
    assert lookup.propose([90, 10, 11, 12, 13, 90], 2).tokens == (10, 11), "each is in the text once"


def test_a_long_prompt_is_taken_in_by_parts() -> None:
    prompt = np.arange(3 * N_FEED, dtype=np.int32)
    lookup = Lookup(prompt, (), Acceptance())
    assert not lookup.feed() and not lookup.propose([5, 6], 3).tokens
    assert lookup.propose([5, 6], 3).tokens == (7, 8, 9)


def test_a_long_prediction_is_taken_in_by_parts_too() -> None:
    expected = tuple(range(1000, 1000 + 3 * N_FEED))
    lookup = Lookup(PROMPT, (), Acceptance(), expected)
    assert lookup.propose([], 3).tokens == expected[:3]
    late = 2 * N_FEED + 50
    assert not lookup.propose([777, expected[late]], 3).tokens, "not all of it is in yet"
    lookup.feed()
    assert lookup.propose([777, expected[late], expected[late + 1]], 3).tokens == expected[late + 2 : late + 5]


def test_a_prediction_is_drafted_from_its_first_token_on() -> None:
    expected = (200, 201, 202, 203, 204, 205)
    lookup = Lookup(PROMPT, (), Acceptance(), expected)
    assert lookup.propose([], 3).tokens == expected[:3]
    assert lookup.propose([200, 201], 3).tokens == expected[2:5]
    assert lookup.propose([200, 201, 777], 3).tokens == (), "what is expected there is not known"
    assert lookup.propose([200, 201, 777, 204], 3).tokens == (205,)


def test_wrong_drafts_are_trusted_less() -> None:
    lookup = Lookup(PROMPT, (), Acceptance(Acceptance()))
    answer: list[int] = []
    first = 0.0
    for i in range(30):
        answer += [20, 1000 + i]
        survival = lookup.propose(answer[:-1], 1).survival
        first = first or survival[0]
        last = survival[0]
        lookup.propose(answer, 1)
    assert last < first / 2
