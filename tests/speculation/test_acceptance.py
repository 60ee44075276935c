"""Acceptance rates follow the drawn tokens: quickly for a session, and slowly for later sessions."""

from __future__ import annotations

import pytest

from uma_core.session.draft import Agreement, Draft
from uma_core.speculation.acceptance import PRIOR, Acceptance

ONE, SAME, DIFFERENT = Agreement


def drafted(source: str, n_match: int, *tokens: int, agreement: Agreement = ONE) -> Draft:
    return Draft(tokens, (0.5,) * len(tokens), source, n_match, (agreement,) * len(tokens))


def test_longer_matches_are_trusted_more() -> None:
    rates = Acceptance()
    assert all(sorted(prior) == list(prior) for prior in PRIOR.values())
    assert rates.rate("lookup", 1) < rates.rate("lookup", 5) < rates.rate("lookup", 100)


def test_survival_is_a_product_over_a_match_that_grows() -> None:
    rates = Acceptance()
    expected = rates.rate("lookup", 7)
    assert rates.survival("lookup", 7, [ONE] * 3) == [
        pytest.approx(expected),
        pytest.approx(expected * rates.rate("lookup", 8)),
        pytest.approx(expected * rates.rate("lookup", 8) * rates.rate("lookup", 9)),
    ]


def test_a_session_that_is_right_soon_drafts_more() -> None:
    rates = Acceptance(Acceptance())
    before = rates.rate("lookup", 2)
    for _ in range(40):
        rates.observe(drafted("lookup", 2, 5), [5])
    assert rates.rate("lookup", 2) > 0.8 > before
    assert rates.rate("history", 2) == before, "of another source nothing was seen"


def test_what_followed_a_match_twice_is_trusted_more_than_what_followed_it_once() -> None:
    rates = Acceptance()
    assert all(rates.rate("lookup", n, SAME) > rates.rate("lookup", n, ONE) for n in (1, 2, 4, 8))
    assert all(rates.rate("lookup", n, DIFFERENT) < 0.25 for n in (1, 2, 4, 8, 100))


def test_what_a_session_learns_of_places_that_differ_tells_nothing_of_others() -> None:
    rates = Acceptance(Acceptance())
    before = rates.rate("lookup", 3, ONE)
    for _ in range(40):
        rates.observe(drafted("lookup", 3, 5, agreement=DIFFERENT), [5])
    assert rates.rate("lookup", 3, DIFFERENT) > 0.6 and rates.rate("lookup", 3, ONE) == before


def test_what_follows_a_wrong_draft_tells_nothing() -> None:
    rates = Acceptance()
    deep = rates.rate("lookup", 9)
    rates.observe(drafted("lookup", 7, 1, 2, 3), [9, 2, 3])
    assert rates.rate("lookup", 7) < PRIOR[ONE][3] and rates.rate("lookup", 9) == deep


def test_new_sessions_begin_with_what_others_have_learned() -> None:
    shared = Acceptance()
    for _ in range(400):
        Acceptance(shared).observe(drafted("lookup", 3, 1), [2])
    assert Acceptance(shared).rate("lookup", 3) < 0.1
