"""What is timed at start covers what ticks will hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from uma_core.clock import ManualClock
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.executor.calibration import _is_calm, calibrate, measure
from uma_core.executor.executor import device_view
from uma_core.policy.cost import DECODE, SHORT, Sample, fit


@pytest.mark.parametrize("n_seq", [1, 2, 3, 8])
def test_rows_of_drafts_are_timed_where_there_are_fewer_sequences(n_seq: int) -> None:
    clock = ManualClock(1)
    engine = FakeEngine(FakeModel(n_seq_max=n_seq, n_ctx=4096 * n_seq), CPU_SHAPE, clock)
    device = device_view(engine)
    model = fit(measure(engine, device, clock), device)
    batch_ns = {n: model.decode_ns(n, 64 * n) for n in (1, 2, 4, 8)}
    assert max(model.decode.sizes) >= device.n_verify_rows == 16
    assert batch_ns[8] < 6 * batch_ns[1], "not in proportion: eight rows read the weights once"
    assert not any(engine.kv_len(seq_id) for seq_id in range(n_seq))


def test_calls_of_more_rows_than_were_timed_are_timed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was stored says nothing of them: drafts would be judged by a guess."""
    monkeypatch.setenv("UMA_BUILD_CACHE", str(tmp_path))
    clock = ManualClock(1)
    for n_batch in (4, 64):
        engine = FakeEngine(FakeModel(n_seq_max=1, n_batch=n_batch, n_ctx=4096), CPU_SHAPE, clock)
        model = calibrate(engine, device_view(engine), clock, "auto")
    assert max(model.decode.sizes) == 16


@pytest.mark.parametrize(
    ("times_ms", "is_calm"),
    [((16.2, 38.5, 47.0, 52.0), True), ((16.0, 15.0, 48.0, 20.0), True), ((0.7, 275.8, 0.9, 13.9), False)],
)
def test_rows_that_take_far_longer_than_one_by_one_were_disturbed(times_ms: tuple[float, ...], is_calm: bool) -> None:
    alone = [Sample(DECODE, 1, SHORT, int(times_ms[0] * 1e6))] * 4
    rows = [Sample(DECODE, n, SHORT, int(ms * 1e6)) for n, ms in enumerate(times_ms, 1)]
    assert _is_calm(alone + rows) == is_calm
