"""Timing calls of both engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perf.engines import decode_call
from uma_core.engine.api import Batch, DecodeOutcome, DecodeStatus


def test_a_call_that_fails_is_not_a_fast_one() -> None:
    batch = Batch(4)
    batch.add(1, 0, 0, True)
    statuses = iter([DecodeStatus.OK, DecodeStatus.FULL])
    engine: Any = SimpleNamespace(decode=lambda batch, samplers: DecodeOutcome(next(statuses), [7], 900, 0))
    assert decode_call(engine, batch) == 900
    with pytest.raises(AssertionError, match="FULL"):
        decode_call(engine, batch)
