"""The last ticks stay in memory."""

from __future__ import annotations

from tests.trace.support import busy_second
from uma_core.trace.recorder import Recorder


def test_the_ring_keeps_the_last_ticks_only():
    ring = Recorder(5)
    for tick in busy_second():
        ring(*tick)
    assert len(ring.ticks) == 5
