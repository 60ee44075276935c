"""Arithmetic on token times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.stats import (
    PhaseLog,
    StreamLog,
    against_solo,
    percentile,
    phase_figures,
    ratio,
    spread,
    stream_figures,
    worst_of,
)

MS = 1_000_000
FLOATS = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40)


def stream(
    times_ms: list[float], name: str = "s", sent_ms: float = 0.0, done_ms: float | None = None, asked: int | None = None
) -> StreamLog:
    tokens = tuple(round(t * MS) for t in times_ms)
    end = round((done_ms if done_ms is not None else (times_ms or [sent_ms])[-1]) * MS)
    return StreamLog(name, True, 10, asked if asked is not None else len(times_ms), round(sent_ms * MS), tokens, end)


@given(FLOATS, st.floats(0, 100))
def test_percentile_lies_between_neighbours_and_ends_are_exact(values: list[float], q: float) -> None:
    assert min(values) <= percentile(values, q) <= max(values)
    assert percentile(values, 0) == min(values)
    assert percentile(values, 100) == max(values)


@given(FLOATS, st.floats(0, 100), st.floats(0, 100))
def test_percentile_grows_with_q(values: list[float], a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert percentile(values, low) <= percentile(values, high) + 1e-6


def test_percentile_interpolates() -> None:
    assert percentile([10, 20, 30, 40], 50) == 25
    assert percentile([0, 10], 95) == pytest.approx(9.5)
    assert math.isnan(percentile([], 50))


def test_what_was_lost_has_no_place_among_the_quick() -> None:
    assert math.isnan(percentile([1.0, math.nan, 2.0], 50))


def test_spread_leaves_out_failed_repeats() -> None:
    s = spread([3.0, math.nan, 1.0, 2.0])
    assert (s.n, s.median, s.low, s.high) == (3, 2.0, 1.0, 3.0)
    assert spread([math.nan]).n == 0


def test_ratio_of_nothing_is_nan() -> None:
    assert ratio(3, 2) == 1.5
    assert math.isnan(ratio(3, 0)) and math.isnan(ratio(math.nan, 1)) and math.isnan(ratio(1, math.nan))


def test_stream_figures() -> None:
    s = stream([120, 136, 152, 168, 184, 500], sent_ms=20)
    figures = stream_figures(s)
    assert figures["ttft_ms"] == 100 and figures["ttf5_ms"] == 164 and figures["stream_ms"] == 480
    assert figures["itl_p50_ms"] == 16 and figures["pause_ms"] == 316


def test_early_pause_counts_gaps_that_begin_within_three_seconds() -> None:
    s = stream([100, 120, 2990, 9000, 9020, 30_000])
    assert s.worst_ms(3000.0) == 6010  # the gap began at 2,990 ms
    assert s.worst_ms() == 20_980


def test_short_stream_has_nan_not_zero() -> None:
    figures = stream_figures(stream([100]))
    assert figures["ttft_ms"] == 100
    assert all(math.isnan(figures[name]) for name in ("ttf5_ms", "itl_p50_ms", "pause_ms"))
    assert math.isnan(stream([], done_ms=5).ttft_ms)


def test_a_p99_needs_a_hundred_gaps() -> None:
    """Of fewer it would lie between the two longest."""
    few, enough = (stream([10 * i for i in range(1, n + 2)]) for n in (99, 100))
    assert math.isnan(stream_figures(few)["itl_p99_ms"]) and stream_figures(enough)["itl_p99_ms"] == 10


def test_against_solo_counts_pauses_in_solo_steps() -> None:
    solo = stream([100 + 16 * i for i in range(20)])
    loaded = stream([150 + 32 * i for i in range(20)])
    x = against_solo(loaded, solo)
    assert x["ttft_x"] == 1.5 and x["p95_x"] == 2 and x["pause_x"] == 2 and x["pause_3s_x"] == 2


def test_two_runs_alone_count_as_their_mean_in_whatever_order() -> None:
    fast, slow = stream([100 + 10 * i for i in range(41)]), stream([200 + 20 * i for i in range(41)])
    loaded = stream([150 + 20 * i for i in range(41)])
    for runs in ((fast, slow), (slow, fast)):
        x = against_solo(loaded, *runs)
        assert x["p95_x"] == pytest.approx(20 / 15) and x["pause_x"] == pytest.approx(20 / 15)
        assert x["ttft_x"] == 1 and x["stream_x"] == pytest.approx(950 / 750)
    assert against_solo(loaded, fast, fast)["p95_x"] == 2 and against_solo(loaded, slow, slow)["p95_x"] == 1
    assert all(math.isnan(value) for value in against_solo(loaded, fast, stream([])).values())


def test_worst_of_lets_no_lost_stream_hide() -> None:
    worst = worst_of([{"a": 1.0, "b": 5.0}, {"a": math.nan, "b": 7.0}])
    assert math.isnan(worst["a"]) and worst["b"] == 7.0


def test_phase_rates_and_makespan() -> None:
    a = stream([100 + 10 * i for i in range(11)], "a")
    b = stream([150 + 10 * i for i in range(11)], "b", done_ms=260)
    log = PhaseLog(0, (a, b), server_cpu_s=0.13)
    assert log.makespan_ms == 260
    assert log.tokens_per_s == pytest.approx(22 / 0.26)
    assert log.steady_tokens_per_s == pytest.approx(10 / 0.05)  # from 150 to 200 ms: five tokens of each
    figures = phase_figures(log)
    assert figures["failed_n"] == 0 and figures["server_cpu_cores"] == pytest.approx(0.5)
    assert log["b"] is b and log.named("a") == [a]


def test_a_stream_that_never_ended_took_until_the_phases_end() -> None:
    quick, cut, unanswered = (
        stream([100, 110], "a"),
        StreamLog("b", True, 10, 9, 0, (120 * MS,), 0, "not finished"),
        StreamLog("c", True, 10, 9, 0, (), 0, "not finished"),
    )
    for lost in (cut, unanswered):
        log = PhaseLog(0, (quick, lost), t_end=60_000 * MS)
        assert log.makespan_ms == 60_000
        assert log.tokens_per_s == pytest.approx((2 + len(lost.t_tokens)) / 60)
    assert math.isnan(PhaseLog(0, (quick, unanswered)).steady_tokens_per_s)


@pytest.mark.parametrize(
    ("log", "complete"),
    [
        (stream([1, 2]), True),
        (stream([1, 2], asked=3), False),
        (StreamLog("s", True, 1, 1, 0, (1,), 0), False),
        (StreamLog("s", True, 1, 1, 0, (1,), 2, "lost"), False),
    ],
)
def test_completeness(log: StreamLog, complete: bool) -> None:
    assert log.is_complete is complete
