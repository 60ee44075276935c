"""Recorded states are planned again."""

from __future__ import annotations

import pytest

from tests.trace.support import busy_second, lines_of
from uma_core.engine.fake.cost import CPU_SHAPE, GPU_SHAPE
from uma_core.trace.replay import differences


@pytest.mark.parametrize("cost", [CPU_SHAPE, GPU_SHAPE], ids=["cpu", "gpu"])
def test_every_recorded_plan_comes_out_again(cost):
    ticks = busy_second(cost, bmt_budget=-1.0)
    lines = lines_of(ticks)
    assert list(differences(lines)) == []
    assert len([x for x in lines if "new_context" in x]) == 1, "tables are written once"


def test_a_changed_plan_is_found_and_named():
    lines = lines_of(busy_second())
    at = next(i for i, x in enumerate(lines) if '"run_ns": 450000000' in x)
    lines[at] = lines[at].replace('"run_ns": 450000000', '"run_ns": 449999999')
    (found,) = differences(lines)
    assert "run_ns" in found and f"line {at + 1}" in found
