"""Tokens that may follow an answer: drafted, and then verified by the model in one decode call."""

from __future__ import annotations

from typing import NamedTuple

from uma_core.types import TokenId


class Draft(NamedTuple):
    tokens: tuple[TokenId, ...] = ()
    survival: tuple[float, ...] = ()  # probability of each that it, and all before it, will be drawn
    source: str = ""  # "lookup", "history", "prediction", "forced"
    n_match: int = 0  # tokens before it that occurred where it comes from


NO_DRAFT = Draft()
