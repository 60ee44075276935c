"""Rates follow what was drawn, for a session quickly and for later ones slowly."""

from __future__ import annotations

import pytest

from uma_core.speculation.acceptance import PRIOR, Acceptance


def test_longer_matches_are_trusted_more() -> None:
    rates = Acceptance()
    assert sorted(PRIOR) == list(PRIOR)
    assert rates.rate("lookup", 1) < rates.rate("lookup", 5) < rates.rate("lookup", 100)


def test_survival_is_a_product_over_a_match_that_grows() -> None:
    rates = Acceptance()
    expected = rates.rate("lookup", 7)
    assert rates.survival("lookup", 7, 3) == [
        pytest.approx(expected),
        pytest.approx(expected * rates.rate("lookup", 8)),
        pytest.approx(expected * rates.rate("lookup", 8) * rates.rate("lookup", 9)),
    ]


def test_a_session_that_is_right_soon_drafts_more() -> None:
    rates = Acceptance(Acceptance())
    before = rates.rate("lookup", 2)
    for _ in range(40):
        rates.observe("lookup", 2, [5], [5])
    assert rates.rate("lookup", 2) > 0.8 > before
    assert rates.rate("history", 2) == before, "of another source nothing was seen"


def test_what_follows_a_wrong_draft_tells_nothing() -> None:
    rates = Acceptance()
    deep = rates.rate("lookup", 9)
    rates.observe("lookup", 7, [1, 2, 3], [9, 2, 3])
    assert rates.rate("lookup", 7) < PRIOR[3] and rates.rate("lookup", 9) == deep


def test_new_sessions_begin_with_what_others_have_learned() -> None:
    shared = Acceptance()
    for _ in range(400):
        Acceptance(shared).observe("lookup", 3, [1], [2])
    assert Acceptance(shared).rate("lookup", 3) < 0.1
