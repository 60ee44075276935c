"""Earlier answers of an account are found again, bounded, and never used for another account."""

from __future__ import annotations

import numpy as np

from uma_core.speculation.acceptance import Acceptance
from uma_core.speculation.history import N_ACCOUNTS, History
from uma_core.speculation.lookup import Lookup
from uma_core.speculation.suffix import Cursor


def found(history: History, client: int, tokens: list[int]) -> int:
    """Return the length of the longest match of the end of these tokens."""
    best = 0
    for text in history.texts(client):
        cursor = Cursor(text)
        for token in tokens:
            cursor.follow(token)
        best = max(best, cursor.n_match)
    return best


def test_an_answer_is_drafted_from_an_earlier_one() -> None:
    history = History(1000)
    history.add(7, list(range(100, 150)))
    lookup = Lookup(np.array([1, 2, 3], np.int32), history.texts(7), Acceptance())
    draft = lookup.propose([120, 121, 122], 4)
    assert draft.tokens == (123, 124, 125, 126) and draft.source == "history"


def test_accounts_do_not_see_each_other() -> None:
    history = History(1000)
    history.add(7, list(range(100, 150)))
    assert found(history, 7, [110, 111]) == 2 and found(history, 8, [110, 111]) == 0


def test_old_answers_are_forgotten() -> None:
    history = History(200)
    for i in range(20):
        history.add(1, list(range(1000 * i, 1000 * i + 60)))
    assert found(history, 1, [19_000, 19_001]) == 2
    assert found(history, 1, [5, 6]) == 0
    assert sum(text.n for text in history.texts(1)) <= 200 + 20


def test_accounts_that_have_been_away_longest_are_forgotten() -> None:
    history = History(100)
    for client in range(N_ACCOUNTS + 5):
        history.add(client, [1, 2, 3])
    assert not history.texts(0) and history.texts(N_ACCOUNTS + 4)


def test_an_answer_longer_than_the_history_leaves_its_end() -> None:
    history = History(100)
    history.add(1, list(range(500)))
    assert found(history, 1, [498, 499]) == 2 and found(history, 1, [10, 11]) == 0


def test_none_is_kept_where_none_is_wanted() -> None:
    history = History(0)
    history.add(1, [1, 2, 3])
    assert not history.texts(1)
