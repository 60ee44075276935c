"""What is timed at start, and the model that follows from it."""

from __future__ import annotations

import pytest

from tests.policy.build import CPU, DEVICE, MIX_ROWS, MS
from uma_core.policy.cost.calibrate import CHUNK, DECODE, MIXED, TRANSFER, Shape, calibration_shapes, fit

NO_KV = DEVICE._replace(kv_bytes_per_cell=0)  # a cell costs exactly what was measured, however little that is


def test_fit_returns_what_was_measured_and_separates_context_from_rows():
    rows = {Shape(DECODE, 1, 0): 16 * MS, Shape(DECODE, 1, 1000): 18 * MS}
    model = fit({**rows, Shape(CHUNK, 64, 0): 190 * MS, Shape(CHUNK, 64, 1000): 280 * MS}, NO_KV)
    assert model.decode_ns(1, 500) == pytest.approx(17 * MS, rel=1e-3)
    assert model.prefill_ns(64, 500) == pytest.approx(235 * MS, rel=1e-3)
    assert model.solo_step_ns(0) == model.decode_ns(1, 0)


def test_legal_chunks_leave_out_sizes_that_a_larger_one_undercuts():
    times = ((16, 61), (32, 118), (63, 220), (64, 191), (128, 372), (256, 729))
    model = fit({Shape(DECODE, 1, 0): 17 * MS} | {Shape(CHUNK, n, 0): ms * MS for n, ms in times}, NO_KV)
    assert 63 not in model.chunks and {64, 128, 256} <= set(model.chunks)


def test_one_disturbed_timing_does_not_leave_a_single_chunk_size():
    times = ((16, 8.3), (32, 4.8), (64, 14.7), (128, 27.0), (256, 55.0), (512, 118.0))  # the 32 cannot be true
    model = fit({Shape(DECODE, 1, 0): 2 * MS} | {Shape(CHUNK, n, 0): int(ms * MS) for n, ms in times}, NO_KV)
    assert 32 not in model.chunks and {64, 128, 256, 512} <= set(model.chunks)


def test_a_disturbed_step_over_a_long_context_does_not_make_cells_dear():
    times = {(1, 64): 20.0, (1, 1024): 300.0, (4, 64): 22.0, (4, 1024): 25.0}
    model = fit({Shape(DECODE, *rows): int(ms * MS) for rows, ms in times.items()}, NO_KV)
    assert model.decode_ns(1, 64) == pytest.approx(20 * MS, rel=0.01)
    assert model.decode_ns(1, 2_000) < 23 * MS


def test_a_cell_takes_at_least_as_long_as_reading_its_bytes():
    free = {Shape(DECODE, 1, kv): 20 * MS for kv in (64, 1024)}
    cell = 20 * MS * DEVICE.kv_bytes_per_cell / DEVICE.weight_bytes
    assert fit(free, DEVICE).decode_ns(1, 30_000) == pytest.approx(20 * MS + 30_000 * cell, rel=1e-3)
    assert fit(free, NO_KV).decode_ns(1, 30_000) == 20 * MS


def test_calibration_shapes_fit_the_device_and_begin_with_one_row():
    small = DEVICE._replace(n_seq_max=2, n_ubatch=96, n_ctx_seq=512)
    shapes = calibration_shapes(small)
    assert shapes[0].kind == DECODE and shapes[0].n_rows == 1
    assert all(s.n_rows <= 2 for s in shapes if s.kind == DECODE)
    assert all(s.n_rows <= 96 and s.n_kv + s.n_rows <= 512 for s in shapes if s.kind == CHUNK)
    assert any(s.n_rows == 96 for s in shapes if s.kind == CHUNK), "the device's own largest chunk"
    tiny = DEVICE._replace(n_ctx_seq=256)
    stateful = calibration_shapes(tiny._replace(kv_bytes_per_cell=0))
    assert stateful and not any(s.kind == TRANSFER for s in stateful), "recurrent layers alone have no KV"
    moved = [s.n_rows // tiny.kv_bytes_per_cell for s in calibration_shapes(tiny) if s.kind == TRANSFER]
    assert moved and max(moved) <= 256, "what a sequence can hold"


def test_fit_of_part_of_the_shapes_still_predicts_everything():
    model = fit({Shape(DECODE, 1, 64): 20 * MS}, DEVICE)
    assert model.is_measured and model.prefill_ns(256, 0) > model.decode_ns(1, 0)


def test_mixed_calls_are_timed_only_where_prompts_may_ride():
    device = DEVICE._replace(mixed_rows=MIX_ROWS)
    assert not any(s.kind == MIXED for s in calibration_shapes(DEVICE)) and CPU.mixed is None
    assert {s.n_rows for s in calibration_shapes(device) if s.kind == MIXED} == set(MIX_ROWS)
    assert not any(s.kind == MIXED for s in calibration_shapes(device._replace(n_seq_max=1)))
    rows = {Shape(DECODE, 1, 0): 16 * MS, Shape(CHUNK, 64, 0): 190 * MS}
    model = fit({**rows, Shape(MIXED, 8, 0): 18 * MS, Shape(MIXED, 8, 1000): 22 * MS}, NO_KV)
    assert fit(rows, NO_KV).mixed is None and model.mixed.ns(8, 500) == pytest.approx(20 * MS)
