"""Tokens that may follow an answer: drafted, and then verified by the model in one decode call."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from uma_core.types import TokenId


class Agreement(IntEnum):
    """Whether the two latest places of a match agree on the token after it (uma_speculation.h: uma_agreement)."""

    ONE = 0  # there is only one place, or the other one has already continued differently
    SAME = 1
    DIFFERENT = 2  # the token is from the latest place


class Draft(NamedTuple):
    tokens: tuple[TokenId, ...] = ()
    survival: tuple[float, ...] = ()  # of each token: the probability that it and all before it will be drawn
    source: str = ""  # "lookup", "history", "prediction" or "draft"; "forced" if it has only forced tokens
    n_match: int = 0  # length of the match, in tokens, that the draft continues
    agreement: tuple[Agreement, ...] = ()  # one per token that came from a lookup
    n_forced: int = 0  # the first so many `tokens` are forced by a grammar or by the end of a thought

    def by_source(self, n_verified: int, n_accepted: int) -> tuple[tuple[str, int, int], ...]:
        """Divide its first `n_verified` tokens, of which `n_accepted` were accepted, among its sources."""
        n_forced = min(self.n_forced, n_verified)
        n_forced_accepted = min(n_forced, n_accepted)
        return (
            ("forced", n_forced, n_forced_accepted),
            (self.source, n_verified - n_forced, n_accepted - n_forced_accepted),
        )


NO_DRAFT = Draft()
