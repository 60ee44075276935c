"""Correction by the times of calls."""

from __future__ import annotations

import random

import pytest

from tests.policy.build import CPU, DEVICE, MIXING, MS, report
from uma_core.policy.cost.calibrate import guess
from uma_core.policy.cost.curve import Curve
from uma_core.policy.cost.learn import observe
from uma_core.policy.cost.model import CostModel, regime_of
from uma_core.policy.state import CallReport
from uma_core.types import Phase


def see(model: CostModel, one: CallReport) -> CostModel:
    return observe(model, [one])


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
