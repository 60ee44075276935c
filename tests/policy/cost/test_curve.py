"""A measured curve, between its sizes and beyond them."""

from __future__ import annotations

from uma_core.policy.cost.curve import Curve


def test_curve_is_linear_between_sizes_and_keeps_both_sides_of_a_cliff():
    curve = Curve((1, 63, 64), (16.0, 220.0, 191.0), (0.0, 0.0, 0.0))
    assert curve.ns(63, 0) == 220.0 and curve.ns(64, 0) == 191.0
    assert 16.0 < curve.ns(32, 0) < 220.0
    assert curve.ns(128, 0) == 2 * 191.0
    assert curve.ns(1, 0) == curve.ns(0, 0)
