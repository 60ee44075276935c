"""Settings of draft tokens, from the configuration."""

from __future__ import annotations

from typing import NamedTuple

OFF, LOOKUP, DRAFT, AUTO = "off", "lookup", "draft", "auto"


class Settings(NamedTuple):
    # mode of requests that name none and predict nothing; auto: all sources, if a token does not depend on the other
    # rows of its call
    mode: str = OFF
    n_most: int = 8  # most draft tokens of a stream in one step
    n_history: int = 32768  # most tokens of its answers that are kept for a client account
