"""Which rows can share a call."""

from __future__ import annotations

import pytest

from tests.policy.build import DEVICE, talking
from uma_core.policy.state import sharing


@pytest.mark.parametrize(
    ("can_mix_rows", "groups"), [(False, [[0, 1], [3, 4], [7]]), (True, [[0, 1, 3, 4, 7]])], ids=["own", "one"]
)
def test_calls_span_no_gap_of_sequences_where_each_has_its_own_stream(can_mix_rows, groups):
    device = DEVICE._replace(can_mix_rows=can_mix_rows)
    views = [talking(sid) for sid in (7, 0, 3, 1, 4)]
    assert [[v.seq_id for v in group] for group in sharing(device, views)] == groups
