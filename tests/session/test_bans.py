"""Tokens that are banned at a place, for as long as an answer may come back to it."""

from __future__ import annotations

from uma_core.session.bans import WASTE_LEAST, WASTE_SHARE, Bans


def test_a_place_collects_its_tokens():
    bans = Bans(100)
    assert bans.add(5, 40, n_taken=2, n_pending=3) == [40]
    assert bans.add(5, 41, n_taken=1, n_pending=3) == [40, 41]
    assert bans.add(7, 40, n_taken=1, n_pending=3) == [40], "another place has bans of its own"


def test_going_back_before_a_place_lifts_its_bans():
    bans = Bans(100)
    bans.add(7, 40, 1, 3)
    bans.add(5, 41, 1, 3)
    assert bans.add(7, 42, 1, 3) == [42], "the tokens before it are others now"


def test_a_place_that_the_answer_cannot_return_to_is_forgotten():
    bans = Bans(100)
    bans.add(5, 40, 1, 3)
    bans.add(8, 41, 1, 3)
    assert bans.add(5, 42, 1, 3) == [40, 42], "three places back is within reach"
    bans.add(9, 43, 1, 3)
    assert bans.add(5, 44, 1, 4) == [44]


def test_an_answer_may_take_back_so_many_tokens_and_no_more():
    bans = Bans(10)
    n = WASTE_SHARE * 10 + WASTE_LEAST
    bans.add(0, 1, n_taken=n, n_pending=0)
    assert not bans.is_spent
    bans.add(0, 1, n_taken=1, n_pending=0)
    assert bans.is_spent
