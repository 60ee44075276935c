"""The timing at the start covers everything that ticks will hold."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from uma_core.clock import ManualClock
from uma_core.engine.fake.cost import CPU_SHAPE, FakeCost
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.executor import calibration
from uma_core.executor.calibration import calibrate, is_calm, shortest, time_shapes
from uma_core.executor.executor import device_view
from uma_core.policy.cost.calibrate import DECODE, MIXED, SHORT, Shape, fit
from uma_core.policy.cost.model import CostModel


@pytest.mark.parametrize("n_seq", [1, 2, 3, 8])
def test_rows_of_drafts_are_timed_where_there_are_fewer_sequences(n_seq: int) -> None:
    clock = ManualClock(1)
    engine = FakeEngine(FakeModel(n_seq_max=n_seq, n_ctx=4096 * n_seq), CPU_SHAPE, clock)
    device = device_view(engine)
    model = fit(shortest(time_shapes(engine, device, clock), device), device)
    batch_ns = {n: model.decode_ns(n, 64 * n) for n in (1, 2, 4, 8)}
    assert max(model.decode.sizes) >= device.n_verify_rows == 16
    assert batch_ns[8] < 6 * batch_ns[1], "not in proportion: eight rows read the weights once"
    assert not any(engine.kv_len(seq_id) for seq_id in range(n_seq))


def test_calls_of_more_rows_than_were_timed_are_timed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stored times do not cover these calls: drafts would be judged by a guess."""
    monkeypatch.setenv("UMA_BUILD_CACHE", str(tmp_path))
    clock = ManualClock(1)
    for n_batch in (4, 64):
        engine = FakeEngine(FakeModel(n_seq_max=1, n_batch=n_batch, n_ctx=4096), CPU_SHAPE, clock)
        model = calibrate(engine, device_view(engine), clock, "auto")
    assert max(model.decode.sizes) == 16


def test_without_a_home_folder_it_is_measured_and_not_stored(homeless: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(1)
    engine = FakeEngine(FakeModel(n_seq_max=2, n_ctx=4096), CPU_SHAPE, clock)
    assert calibrate(engine, device_view(engine), clock, "auto").decode.sizes
    assert "set HOME or XDG_CACHE_HOME" in caplog.text
    assert not list(homeless.iterdir())


@pytest.mark.parametrize("kind", ["a pipe", "a wrong digit", "too deep"])
def test_a_stored_calibration_that_is_none_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    monkeypatch.setenv("UMA_BUILD_CACHE", str(tmp_path))
    clock = ManualClock(1)
    engine = FakeEngine(FakeModel(n_seq_max=2, n_ctx=4096), CPU_SHAPE, clock)
    first = calibrate(engine, device_view(engine), clock, "auto")
    (path,) = (tmp_path / "calibration").iterdir()
    text = path.read_text()
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        # a call of no rows would never serve the rows of a tick
        path.write_text(text.replace('"splits": [[], [1]', '"splits": [[], [0]') if kind[0] == "a" else "[" * 100_000)
    assert calibrate(engine, device_view(engine), clock, "auto").splits == first.splits
    assert path.is_file() and path.read_text() == text


@pytest.mark.parametrize(
    ("times_ms", "is_free"),
    [((16.2, 38.5, 47.0, 52.0), True), ((16.0, 15.0, 48.0, 20.0), True), ((0.7, 275.8, 0.9, 13.9), False)],
)
def test_rows_that_take_far_longer_than_one_by_one_were_disturbed(times_ms: tuple[float, ...], is_free: bool) -> None:
    times = {Shape(DECODE, n, SHORT): [(int(ms * 1e6),) * 2] * 5 for n, ms in enumerate(times_ms, 1)}
    assert is_calm(times) == is_free


@pytest.mark.parametrize("kind", [DECODE, MIXED])
def test_a_call_whose_best_times_differ_was_disturbed(kind: str) -> None:
    one, odd = Shape(DECODE, 1, SHORT), Shape(kind, 4, 0)
    steady = {one: [(20, 20)] * 5}
    assert is_calm({**steady, odd: [(90, 90), (25, 25), (22, 22), (300, 300), (40, 40)]})
    assert not is_calm({**steady, odd: [(90, 90), (45, 45), (22, 22), (300, 300), (40, 40)]})
    assert not is_calm({})


class _Drifting(ManualClock):
    """A machine that is now and then slower by a fifth, for longer than a call takes."""

    def advance(self, ns: int) -> None:
        is_slow = (self.now_ns() // 300_000_000 * 2654435761 >> 7) % 4 == 0  # at irregular times
        super().advance(ns * 6 // 5 if is_slow else ns)


def _slowed(by: float) -> FakeCost:
    def longer(curve: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        return tuple((n, ns * by) for n, ns in curve)

    return replace(CPU_SHAPE, decode=longer(CPU_SHAPE.decode), prefill=longer(CPU_SHAPE.prefill))


@pytest.mark.parametrize(("slower", "budget_s"), [(1.0, 60), (1.8, 10)])
def test_prices_do_not_depend_on_the_moment_at_which_each_was_timed(
    monkeypatch: pytest.MonkeyPatch, slower: float, budget_s: int
) -> None:
    """If prices for some row counts were too high, prompts would be fed in smaller parts for as long as the prices are
    stored. A slow machine has to leave out something else.
    """
    monkeypatch.setattr(calibration, "BUDGET_NS", budget_s * 1_000_000_000)
    models: list[CostModel] = []
    for clock in (ManualClock(1), _Drifting(1)):
        engine = FakeEngine(FakeModel(n_seq_max=4, n_ctx=16384), _slowed(slower), clock)
        device = device_view(engine)
        models.append(fit(shortest(time_shapes(engine, device, clock), device), device))
    for n in (1, 2, 3, 4, 6, 8, 16):
        assert models[1].decode_ns(n, 0) == pytest.approx(models[0].decode_ns(n, 0), rel=0.01)
    for n in (1, 3, 7, 15):
        assert models[1].mixed_ns(1, n, 0) == pytest.approx(models[0].mixed_ns(1, n, 0), rel=0.05)


def test_a_large_model_does_not_start_minutes_later() -> None:
    """Its chunk of 64 tokens takes 1.7 s. One of 512 tokens would take 13.5 s."""
    clock = ManualClock(1)
    engine = FakeEngine(FakeModel(n_seq_max=4, n_ctx=16384), _slowed(10.0), clock)
    device = device_view(engine)
    model = fit(shortest(time_shapes(engine, device, clock), device), device)
    assert clock.now_ns() < 12_000_000_000
    assert model.prefill_ns(512, 0) == pytest.approx(10 * 1350e6, rel=0.1)
