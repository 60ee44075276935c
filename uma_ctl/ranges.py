"""Numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click

SECONDS_MOST = 86_400  # a day, as in the protocol's `timeout_ms`; timers cannot be set to much longer times


class FiniteRange(click.FloatRange):
    """A range of finite numbers: `nan` would pass any bound, and a wait of `inf` would never end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def seconds(least: float, is_open: bool = False) -> FiniteRange:
    """Return the type of an option that is a time to wait, in seconds."""
    return FiniteRange(least, SECONDS_MOST, min_open=is_open)
