"""The verdict about gaps, and the figures that it is based on."""

from __future__ import annotations

import pytest

import uma_core.metrics.catalog as m
from uma_core.server.operations.status import JUDGED_FROM, verdict


@pytest.mark.parametrize(
    ("n_good", "n_long", "expected"),
    [
        (0, 0, {"slo_verdict": "no data"}),
        (JUDGED_FROM - 1, 0, {"slo_verdict": "no data"}),
        (JUDGED_FROM, 0, {"slo_verdict": "met", "within_limit": 1.0}),
        (95, 5, {"slo_verdict": "met", "within_limit": 0.95}),
        (94, 6, {"slo_verdict": "missed", "within_limit": 0.94}),
    ],
)
def test_the_verdict(n_good, n_long, expected):
    registry = m.new_registry()
    stretch = registry.histogram(m.GAP_STRETCH)
    for _ in range(n_good):
        stretch.observe(1.0)  # just within the limit
    for _ in range(n_long):
        stretch.observe(1.000001)
    assert verdict(registry.snapshot().merged(m.GAP_STRETCH)) == expected
