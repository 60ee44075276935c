"""The configuration's settings for draft tokens."""

from __future__ import annotations

from typing import NamedTuple

OFF, LOOKUP, DRAFT, AUTO = "off", "lookup", "draft", "auto"


class Settings(NamedTuple):
    # for requests that give no mode, beside `auto` for those with a prediction; auto: all sources, if a token does not
    # depend on the other rows of its call
    mode: str = OFF
    n_most: int = 8  # most draft tokens of a stream in one step
    n_history: int = 32768  # most tokens of earlier answers to keep per client account
