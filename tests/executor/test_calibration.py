"""What is timed at start covers what ticks will hold."""

from __future__ import annotations

import pytest

from uma_core.clock import ManualClock
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.executor.calibration import measure
from uma_core.executor.executor import device_view
from uma_core.policy.cost import fit


@pytest.mark.parametrize("n_seq", [1, 2, 3, 8])
def test_rows_of_drafts_are_timed_where_there_are_fewer_sequences(n_seq: int) -> None:
    clock = ManualClock(1)
    engine = FakeEngine(FakeModel(n_seq_max=n_seq, n_ctx=4096 * n_seq), CPU_SHAPE, clock)
    device = device_view(engine)
    model = fit(measure(engine, device, clock), device)
    batch_ns = {n: model.decode_ns(n, 64 * n) for n in (1, 2, 4, 8)}
    assert max(model.decode.sizes) >= device.n_verify_rows == 8
    assert batch_ns[8] < 6 * batch_ns[1], "not in proportion: eight rows read the weights once"
    assert not any(engine.kv_len(seq_id) for seq_id in range(n_seq))
