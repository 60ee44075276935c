"""The cost model: fits, cliffs, grouping, online correction, storage."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policy.build import CPU, DEVICE, GPU, MIX_ROWS, MIXING, MS, report
from uma_core.policy.cost.calibrate import CHUNK, DECODE, MIXED, TRANSFER, Sample, calibration_shapes, fit, guess
from uma_core.policy.cost.curve import Curve
from uma_core.policy.cost.learn import observe
from uma_core.policy.cost.model import CostModel, regime_of
from uma_core.policy.state import CallReport
from uma_core.types import Phase

NO_KV = DEVICE._replace(kv_bytes_per_cell=0)  # a cell costs exactly what was measured, however little that is


def see(model: CostModel, one: CallReport) -> CostModel:
    return observe(model, [one])


def test_curve_is_linear_between_sizes_and_keeps_both_sides_of_a_cliff():
    curve = Curve((1, 63, 64), (16.0, 220.0, 191.0), (0.0, 0.0, 0.0))
    assert curve.ns(63, 0) == 220.0 and curve.ns(64, 0) == 191.0
    assert 16.0 < curve.ns(32, 0) < 220.0
    assert curve.ns(128, 0) == 2 * 191.0
    assert curve.ns(1, 0) == curve.ns(0, 0)


def test_fit_returns_what_was_measured_and_separates_context_from_rows():
    rows = [Sample(DECODE, 1, 0, 16 * MS), Sample(DECODE, 1, 1000, 18 * MS)]
    model = fit([*rows, Sample(CHUNK, 64, 0, 190 * MS), Sample(CHUNK, 64, 1000, 280 * MS)], NO_KV)
    assert model.decode_ns(1, 500) == pytest.approx(17 * MS, rel=1e-3)
    assert model.prefill_ns(64, 500) == pytest.approx(235 * MS, rel=1e-3)
    assert model.solo_step_ns(0) == model.decode_ns(1, 0)


def test_calls_follow_the_measured_times_alone():
    assert CPU.call_sizes(2, 512) == [1, 1], "two separate rows are faster than one call of two on this CPU"
    assert GPU.call_sizes(2, 512) == [2]
    assert CPU.call_sizes(8, 512) == [8]


@given(st.integers(0, 64), st.integers(1, 64))
def test_calls_hold_all_rows_within_the_batch(n_rows, n_batch):
    sizes = CPU.call_sizes(n_rows, n_batch)
    assert sum(sizes) == n_rows
    assert all(1 <= size <= n_batch for size in sizes)


def test_legal_chunks_leave_out_sizes_that_a_larger_one_undercuts():
    samples = [
        Sample(CHUNK, n, 0, int(ms * MS))
        for n, ms in ((16, 61), (32, 118), (63, 220), (64, 191), (128, 372), (256, 729))
    ]
    model = fit([Sample(DECODE, 1, 0, 17 * MS), *samples], NO_KV)
    assert 63 not in model.chunks and {64, 128, 256} <= set(model.chunks)


def test_one_disturbed_timing_does_not_leave_a_single_chunk_size():
    times = ((16, 8.3), (32, 4.8), (64, 14.7), (128, 27.0), (256, 55.0), (512, 118.0))  # the 32 cannot be true
    model = fit([Sample(DECODE, 1, 0, 2 * MS), *[Sample(CHUNK, n, 0, int(ms * MS)) for n, ms in times]], NO_KV)
    assert 32 not in model.chunks and {64, 128, 256, 512} <= set(model.chunks)


def test_observation_moves_towards_the_truth_and_one_outlier_moves_little():
    model = CPU
    for _ in range(60):
        predicted = model.decode_ns(1, 0)
        model = see(model, report(Phase.DECODE, 1, predicted, int(1.3 * CPU.decode_ns(1, 0))))
    assert model.decode_ns(1, 0) == pytest.approx(1.3 * CPU.decode_ns(1, 0), rel=0.03)
    spiked = see(model, report(Phase.DECODE, 1, model.decode_ns(1, 0), 100 * model.decode_ns(1, 0)))
    assert spiked.decode_ns(1, 0) < 1.05 * model.decode_ns(1, 0)


def test_each_regime_is_corrected_by_itself_and_unseen_ones_follow_the_nearest():
    slow = CPU
    for _ in range(40):
        slow = see(slow, report(Phase.DECODE, 1, slow.decode_ns(1, 0), int(1.5 * CPU.decode_ns(1, 0))))
    for _ in range(3):
        slow = see(slow, report(Phase.DECODE, 8, slow.decode_ns(8, 0), slow.decode_ns(8, 0)))
    assert slow.factors[regime_of(1)] > 1.4
    assert slow.factors[regime_of(2)] == slow.factors[regime_of(1)], "2 rows were never seen"
    assert slow.prefill_ns(64, 0) == CPU.prefill_ns(64, 0)


def test_a_step_that_seemed_long_takes_no_longer_than_calls_that_it_is_part_of():
    """Background rows or a prompt's rows share all its calls, so it is never timed alone."""
    truth = CPU.decode_ns(1, 0)
    long = CPU._replace(factors=(2.5, *CPU.factors[1:]), counts=(9, *CPU.counts[1:]))
    shared = mixed = long
    for _ in range(60):
        shared = see(shared, report(Phase.DECODE, 2, shared.decode_ns(2, 0), truth + 4 * MS))
        seen = report(Phase.DECODE, 8, mixed.decode_ns(1, 0) + MS, truth + 2 * MS)
        mixed = see(mixed, seen._replace(n_mixed=7, mixed_ns=MS))
    assert shared.decode_ns(1, 0) <= 1.01 * (truth + 4 * MS)
    assert mixed.decode_ns(1, 0) <= 1.01 * (truth + 2 * MS)


def test_what_was_not_predicted_or_found_no_room_teaches_nothing():
    assert see(CPU, report(Phase.DECODE, 1, 0, 5 * MS)) is CPU
    assert see(CPU, report(Phase.DECODE, 1, 5 * MS, 5 * MS)._replace(is_full=True)) is CPU


def test_a_guess_learns_within_a_few_calls():
    model, truth = guess(DEVICE), 300 * MS
    for _ in range(12):
        model = see(model, report(Phase.DECODE, 1, model.decode_ns(1, 0), truth))
    assert model.decode_ns(1, 0) == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("error", [0.9, 1.1])
def test_many_calls_booked_at_once_teach_what_they_teach_one_by_one(error):
    """A plan is repeated many times before its calls are booked. The model as it was at the beginning predicted all of
    them.
    """
    truth = int(CPU.decode_ns(4, 0) * error)
    at_once = observe(CPU, [report(Phase.DECODE, 4, CPU.decode_ns(4, 0), truth)] * 64)
    one_by_one = CPU
    for _ in range(64):
        one_by_one = see(one_by_one, report(Phase.DECODE, 4, one_by_one.decode_ns(4, 0), truth))
    assert at_once.decode_ns(4, 0) == pytest.approx(one_by_one.decode_ns(4, 0), rel=1e-3)
    assert at_once.decode_ns(4, 0) == pytest.approx(truth, rel=0.01)


def test_a_disturbed_step_over_a_long_context_does_not_make_cells_dear():
    times = {(1, 64): 20.0, (1, 1024): 300.0, (4, 64): 22.0, (4, 1024): 25.0}
    model = fit([Sample(DECODE, n, kv, int(ms * MS)) for (n, kv), ms in times.items()], NO_KV)
    assert model.decode_ns(1, 64) == pytest.approx(20 * MS, rel=0.01)
    assert model.decode_ns(1, 2_000) < 23 * MS


def test_a_cell_takes_at_least_as_long_as_reading_its_bytes():
    free = [Sample(DECODE, 1, kv, 20 * MS) for kv in (64, 1024)]
    cell = 20 * MS * DEVICE.kv_bytes_per_cell / DEVICE.weight_bytes
    assert fit(free, DEVICE).decode_ns(1, 30_000) == pytest.approx(20 * MS + 30_000 * cell, rel=1e-3)
    assert fit(free, NO_KV).decode_ns(1, 30_000) == 20 * MS


class TestChunksInRuns:
    """A chunk is read in many short runs, and an engine only estimates how far each run came."""

    def read(self, model: CostModel, truth_ns: int, fractions: list[float]) -> CostModel:
        """Return the model after one chunk of 64 tokens. It was read in runs of equal length, after which the engine
        reported these fractions.
        """
        before = 0.0
        for fraction in fractions:
            whole = model.prefill_ns(64, 0)
            seen = report(
                Phase.PREFILL,
                round(64 * (fraction - before)),
                round(whole * (fraction - before)),
                truth_ns // len(fractions),
            )
            model, before = see(model, seen._replace(whole_ns=whole, n_pieces=1)), fraction
        return model

    @pytest.mark.parametrize(
        "fractions",
        [
            [i / 60 for i in range(1, 61)],
            [*[i / 600 for i in range(1, 60)], 1.0],  # hardly any progress, then suddenly the end
            [*[min(0.99, i / 20) for i in range(1, 60)], 1.0],  # the end seemed near for two thirds of the chunk
            [i // 2 / 30 for i in range(1, 61)],  # every second run advanced nothing
        ],
        ids=["steady", "late", "early", "in steps"],
    )
    def test_runs_teach_what_their_chunk_took_however_they_were_rated(self, fractions):
        model, truth = CPU, CPU.prefill_ns(64, 0)
        for _ in range(5):
            model = self.read(model, truth, fractions)
            assert model.prefill_ns(64, 0) == pytest.approx(truth, rel=0.15)
        for _ in range(30):
            model = self.read(model, 2 * truth, fractions)
        assert model.prefill_ns(64, 0) == pytest.approx(2 * truth, rel=0.15)

    def test_a_guess_learns_within_a_few_chunks(self):
        model, truth = guess(DEVICE), 20 * guess(DEVICE).prefill_ns(64, 0)
        for _ in range(8):
            model = self.read(model, truth, [i / 60 for i in range(1, 61)])
        assert model.prefill_ns(64, 0) == pytest.approx(truth, rel=0.15)

    def test_one_disturbed_run_moves_little(self):
        seen = report(Phase.PREFILL, 1, CPU.prefill_ns(64, 0) // 64, 100 * CPU.prefill_ns(64, 0))
        model = see(CPU, seen._replace(whole_ns=CPU.prefill_ns(64, 0)))
        assert model.prefill_ns(64, 0) < 1.04 * CPU.prefill_ns(64, 0)

    def test_a_run_that_computed_nothing_teaches_nothing(self):
        assert see(CPU, report(Phase.PREFILL, 0, 0, 5 * MS)) is CPU


def test_noise_does_not_drag_the_model_away():
    rng = random.Random(3)
    model = CPU
    for _ in range(500):
        noisy = CPU.decode_ns(1, 0) * (rng.uniform(0.97, 1.03) if rng.random() > 0.03 else 5.0)
        model = see(model, report(Phase.DECODE, 1, model.decode_ns(1, 0), int(noisy)))
    assert model.decode_ns(1, 0) == pytest.approx(CPU.decode_ns(1, 0), rel=0.1)


@pytest.mark.parametrize("model", [CPU, GPU, guess(DEVICE)], ids=["cpu", "gpu", "guess"])
def test_storage_gives_an_equal_model(model):
    assert CostModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model


@pytest.mark.parametrize(
    "data", [{}, {"decode": 3}, {**CPU.to_dict(), "factors": [1.0]}, {**CPU.to_dict(), "chunks": []}]
)
def test_foreign_data_is_refused(data):
    with pytest.raises(ValueError, match="not a stored cost model"):
        CostModel.from_dict(data)


@given(st.integers(1, 64), st.integers(0, 8192))
def test_time_grows_with_context_and_a_prompt_is_worth_its_chunks(n_rows, n_kv):
    assert CPU.decode_ns(n_rows, n_kv + 1000) >= CPU.decode_ns(n_rows, n_kv) > 0
    assert CPU.rows_ns(n_rows, n_kv) <= CPU.decode_ns(n_rows, n_kv) * 1.001 + 1000
    assert CPU.prompt_ns(n_rows * 10, n_kv) >= CPU.prefill_ns(1, 0)


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
    model = fit([Sample(DECODE, 1, 64, 20 * MS)], DEVICE)
    assert model.is_measured and model.prefill_ns(256, 0) > model.decode_ns(1, 0)


class TestMixedBatches:
    """Rows of a prompt in a decode call."""

    def seen(self, model, times, n_tokens=7, n_past=0):
        """Return the model after a call of one row and this many prompt rows. The prompt rows added `times` as much as
        was measured.
        """
        added = MIXING.mixed_ns(1, n_tokens, n_past)
        alone = model.decode_ns(1, 0)
        added_ns = model.mixed_ns(1, n_tokens, n_past)
        seen = report(Phase.DECODE, 1 + n_tokens, alone + added_ns, int(alone + times * added))
        return see(model, seen._replace(n_mixed=n_tokens, mixed_ns=added_ns))

    def test_only_where_it_was_measured(self):
        device = DEVICE._replace(mixed_rows=MIX_ROWS)
        assert not any(s.kind == MIXED for s in calibration_shapes(DEVICE)) and CPU.mixed is None
        assert {s.n_rows for s in calibration_shapes(device) if s.kind == MIXED} == set(MIX_ROWS)
        assert not any(s.kind == MIXED for s in calibration_shapes(device._replace(n_seq_max=1)))
        rows = [Sample(DECODE, 1, 0, 16 * MS), Sample(CHUNK, 64, 0, 190 * MS)]
        model = fit([*rows, Sample(MIXED, 8, 0, 18 * MS), Sample(MIXED, 8, 1000, 22 * MS)], NO_KV)
        assert fit(rows, NO_KV).mixed is None and model.mixed.ns(8, 500) == pytest.approx(20 * MS)

    def test_it_grows_with_rows_and_context(self):
        assert MIXING.mixed_ns(1, 7, 0) == pytest.approx(1.8 * MS, rel=1e-3)
        assert (
            MIXING.mixed_ns(1, 3, 0)
            < MIXING.mixed_ns(1, 7, 0)
            < MIXING.mixed_ns(1, 7, 1000)
            < MIXING.mixed_ns(1, 15, 1000)
        )

    @pytest.mark.parametrize("times", [1.2, 3.0, 5.0])
    def test_what_it_takes_is_learnt_for_all_sizes(self, times):
        model = MIXING
        for _ in range(60):
            model = self.seen(model, times)
        for n in (7, 15):
            added = MIXING.mixed.ns(1 + n, 0) - MIXING.mixed.ns(1, 0)
            assert model.mixed_ns(1, n, 0) == pytest.approx(times * added, rel=0.1)
        assert model.factors[:-1] == MIXING.factors[:-1], "streams alone take what they took"

    def test_so_are_rows_that_seemed_to_cost_nothing(self):
        """A disturbance lengthened the call of three rows by what five further ones take."""
        model = MIXING._replace(mixed=Curve((1, 3, 8), (16.0 * MS, 22.0 * MS, 22.0 * MS), (0.0, 0.0, 0.0)))
        for _ in range(60):
            added = model.mixed_ns(3, 5, 0)
            alone = model.decode_ns(3, 0)
            seen = report(Phase.DECODE, 8, alone + added, alone + 6 * MS)
            model = see(model, seen._replace(n_mixed=5, mixed_ns=added))
        assert model.mixed_ns(3, 5, 0) == pytest.approx(6 * MS, rel=0.1)

    def test_so_is_what_a_context_adds(self):
        """Few rows deep in a context: their cost is measured once, over noise of the same size."""
        model = MIXING
        for _ in range(60):
            model = self.seen(model, 3.0, n_tokens=1, n_past=4000)
        assert model.mixed_ns(1, 1, 4000) == pytest.approx(3.0 * MIXING.mixed_ns(1, 1, 4000), rel=0.1)

    def test_one_outlier_moves_little_and_nothing_goes_beyond_its_limits(self):
        assert self.seen(MIXING, 100.0).mixed_ns(1, 7, 0) < 1.2 * MIXING.mixed_ns(1, 7, 0)
        model = MIXING
        for _ in range(300):
            model = self.seen(model, 1000.0)
        assert model.factors[-1] < 100
        for _ in range(300):
            model = self.seen(model, 0.0)
        assert model.factors[-1] == pytest.approx(1.0)

    def test_dear_once_it_is_tried_again_after_some_steps_without_it(self):
        model = MIXING
        for _ in range(30):
            model = self.seen(model, 6.0)
        dear = model.mixed_ns(1, 7, 0)
        for _ in range(100):
            model = see(model, report(Phase.DECODE, 1, model.decode_ns(1, 0), model.decode_ns(1, 0)))
        assert dear > 2 * MIXING.mixed_ns(1, 7, 0) and model.mixed_ns(1, 7, 0) == pytest.approx(
            MIXING.mixed_ns(1, 7, 0), rel=0.05
        )
