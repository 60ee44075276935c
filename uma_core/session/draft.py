"""Tokens that may follow an answer: drafted, and then verified by the model in one decode call."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from uma_core.types import TokenId


class Agreement(IntEnum):
    """Whether the two latest places of a match agree on a token that follows it (uma_speculation.h: uma_agreement)."""

    ONE = 0  # there is one place, or the other one goes on differently
    SAME = 1
    DIFFERENT = 2  # the token is the latest place's


class Draft(NamedTuple):
    tokens: tuple[TokenId, ...] = ()
    survival: tuple[float, ...] = ()  # probability of each that it, and all before it, will be drawn
    source: str = ""  # of what is not forced: "lookup", "history", "prediction", "draft"; else "forced"
    n_match: int = 0  # tokens before it that occurred where it comes from
    agreement: tuple[Agreement, ...] = ()  # of each token that was looked up
    n_forced: int = 0  # how many of `tokens`, the first ones, a grammar or the end of a thought forces


NO_DRAFT = Draft()
