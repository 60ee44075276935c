"""What the configuration says of draft tokens."""

from __future__ import annotations

from typing import NamedTuple

OFF, LOOKUP, DRAFT, AUTO = "off", "lookup", "draft", "auto"


class Settings(NamedTuple):
    # of requests that say nothing and predict nothing; auto: all sources where a token does not depend on which rows
    # are computed with it
    mode: str = OFF
    n_most: int = 8  # draft tokens of a stream in one step
    n_history: int = 32768  # tokens of its answers that are kept for a client account
