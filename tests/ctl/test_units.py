"""Figures and small charts as people read them."""

from __future__ import annotations

import pytest

from uma_ctl import units


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (units.ms, 0, "0 ms"),
        (units.ms, 1.234, "1.23 ms"),
        (units.ms, 812.5, "812 ms"),
        (units.ms, 2548, "2.55 s"),
        (units.ms, 65_432, "65.4 s"),
        (units.ms, None, "-"),
        (units.ms, True, "-"),
        (units.size, 28156256, "26.9 MiB"),
        (units.size, 512, "512 B"),
        (units.size, 5 << 30, "5.00 GiB"),
        (units.span, 5.25, "5.2 s"),
        (units.span, 3661, "1 h 1 min"),
        (units.span, 200_000, "2 d 7 h"),
        (units.count, 1234567, "1,234,567"),
        (units.text, {"a": True, "b": None}, "a yes, b -"),
        (units.text, [], "-"),
    ],
)
def test_units(function, value, text):
    assert function(value) == text


def test_sparklines_scale_to_the_given_top():
    assert units.sparkline([0, 5, 10], 10) == "▁▅█"
    assert units.sparkline([0, 5, 10], 40) == "▁▂▃"
    assert units.sparkline([0, 0]) == "▁▁"
    assert units.sparkline([]) == ""


def test_bars():
    assert units.bar(1, 2, 4) == "██··"
    assert units.bar(9, 2, 4) == "████"
    assert units.bar(None, 2, 4) == "····"
