"""Whose tokens of a draft were verified and accepted: forced ones come first."""

from __future__ import annotations

import pytest

from uma_core.session.draft import NO_DRAFT, Draft


@pytest.mark.parametrize(
    ("n_forced", "n_verified", "n_accepted", "forced", "drafted"),
    [
        (0, 4, 3, (0, 0), (4, 3)),
        (2, 4, 3, (2, 2), (2, 1)),
        (2, 4, 1, (2, 1), (2, 0)),
        (2, 1, 1, (1, 1), (0, 0)),
        (4, 4, 4, (4, 4), (0, 0)),
        (2, 0, 0, (0, 0), (0, 0)),
    ],
)
def test_forced_tokens_are_not_counted_for_the_lookup_behind_them(n_forced, n_verified, n_accepted, forced, drafted):
    draft = Draft((7, 8, 9, 10), (1.0,) * 4, "lookup", 8, n_forced=n_forced)
    assert draft.by_source(n_verified, n_accepted) == (("forced", *forced), ("lookup", *drafted))


def test_nothing_drafted_has_nothing_to_count():
    assert not NO_DRAFT.tokens and not NO_DRAFT.survival
