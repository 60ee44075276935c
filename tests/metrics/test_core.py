"""Counting, quantiles, windows."""

import math
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.metrics import catalog as m
from uma_core.metrics.core import WINDOW_NS, Histogram, Kind, Metric, Registry, log_buckets

SECONDS = Metric("x_seconds", Kind.HISTOGRAM, "seconds", "x", buckets=log_buckets(1_000, 1e9))
ROWS = Metric("x_rows", Kind.HISTOGRAM, "rows", "x", buckets=(1.0, 2.0, 3.0, 4.0, 8.0))
LABELLED = Metric("x_total", Kind.COUNTER, "", "x", labels={"lane": ("a", "b"), "kind": ("p", "q")})


def distribution(metric, values):
    registry = Registry([metric])
    histogram = registry.histogram(metric)
    for value in values:
        histogram.observe(value)
    return registry.snapshot().since_start[metric.name, ()]


def nearest_rank(values, q):
    return sorted(values)[max(1, math.ceil(q * len(values))) - 1]


def test_bounds_are_inclusive_as_prometheus_has_it():
    histogram = Histogram((10, 20))
    for value in (10, 11, 20, 21):
        histogram.observe(value)
    assert histogram.counts == [1, 2, 1]
    assert (histogram.total, histogram.highest) == (62, 21)


def test_log_buckets_keep_their_ratio_and_reach_the_end():
    bounds = log_buckets(100, 1e8)
    assert bounds[0] == 100 and bounds[-1] == pytest.approx(1e8)
    assert len(bounds) == 6 * 24 + 1
    assert {round(b / a, 6) for a, b in pairwise(bounds)} == {round(10 ** (1 / 24), 6)}


@given(
    st.lists(st.integers(1_000, 1_000_000_000), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0])
)
def test_quantiles_are_within_five_percent(values, q):
    assert distribution(SECONDS, values).quantile(q) == pytest.approx(nearest_rank(values, q), rel=0.05)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_of_small_counts_are_exact(values, q):
    assert distribution(ROWS, values).quantile(q) == nearest_rank(values, q)


def test_beyond_the_last_bound_the_highest_value_answers():
    assert distribution(SECONDS, [5e12]).quantile(0.5) == 5e12


def test_without_values_there_are_zeros_not_errors():
    empty = distribution(SECONDS, [])
    assert (empty.n_values, empty.mean, empty.quantile(0.95), empty.highest) == (0, 0.0, 0.0, 0)


def test_every_label_set_exists_from_the_start_and_no_other_ever():
    registry = Registry([LABELLED])
    registry.counter(LABELLED, lane="b", kind="p").add(3)
    assert registry.snapshot().values == {
        ("x_total", ("a", "p")): 0, ("x_total", ("a", "q")): 0, ("x_total", ("b", "p")): 3, ("x_total", ("b", "q")): 0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="needs the labels lane, kind"):
        registry.counter(LABELLED, lane="b")
    with pytest.raises(KeyError):
        registry.counter(LABELLED, lane="c", kind="p")


def test_two_metrics_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one name"):
        Registry([ROWS, ROWS])


def test_a_snapshot_is_a_copy():
    registry = Registry([ROWS])
    before = registry.snapshot()
    registry.histogram(ROWS).observe(2)
    assert before.since_start["x_rows", ()].n_values == 0
    assert registry.snapshot().since_start["x_rows", ()].n_values == 1


def test_labels_merge():
    registry = m.new_registry()
    registry.histogram(m.TTFT, lane="interactive").observe(1_000_000)
    registry.histogram(m.TTFT, lane="background").observe(9_000_000)
    merged = registry.snapshot().merged(m.TTFT)
    assert (merged.n_values, merged.total, merged.highest) == (2, 10_000_000, 9_000_000)


def test_collectors_run_before_a_snapshot():
    registry = m.new_registry()
    registry.on_collect(lambda: registry.gauge(m.RESIDENT_BYTES).set(42))
    assert registry.snapshot().value(m.RESIDENT_BYTES) == 42


def observe_each_second(registry, seconds, value):
    """Observe one value a second on average, with the rotation of the daemon's timer."""
    for second in seconds:
        registry.rotate(second * 1_000_000_000)
        registry.histogram(SECONDS).observe(value)


def test_the_window_forgets_what_is_older_than_a_minute():
    registry = Registry([SECONDS])
    observe_each_second(registry, range(0, 100), 1_000_000)
    observe_each_second(registry, range(100, 200), 50_000)
    recent = registry.snapshot().recent["x_seconds", ()]
    assert recent.quantile(1.0) == pytest.approx(50_000, rel=0.05)
    assert recent.highest == pytest.approx(50_000, rel=0.11)
    assert registry.snapshot().since_start["x_seconds", ()].highest == 1_000_000


@given(st.integers(61, 500))
def test_the_window_covers_half_a_minute_to_a_minute(now):
    registry = Registry([SECONDS])
    observe_each_second(registry, range(now), 50_000)
    assert WINDOW_NS // 2 <= registry.snapshot().recent["x_seconds", ()].n_values * 1_000_000_000 <= WINDOW_NS


def test_a_fresh_window_covers_everything():
    registry = Registry([SECONDS])
    registry.histogram(SECONDS).observe(50_000)
    assert registry.snapshot().recent["x_seconds", ()].n_values == 1


def test_an_empty_window_has_no_highest_value():
    registry = Registry([SECONDS])
    registry.histogram(SECONDS).observe(50_000)
    for second in (0, 31, 62, 93):
        registry.rotate(second * 1_000_000_000)
    recent = registry.snapshot().recent["x_seconds", ()]
    assert (recent.n_values, recent.highest, recent.quantile(0.5)) == (0, 0.0, 0.0)


def test_reading_while_another_thread_writes_loses_nothing():
    registry = Registry([SECONDS])
    histogram = registry.histogram(SECONDS)
    writer = threading.Thread(target=lambda: [histogram.observe(n) for n in range(20_000)])
    writer.start()
    seen = [0]
    while writer.is_alive():
        registry.rotate(len(seen) * WINDOW_NS)
        seen.append(registry.snapshot().since_start["x_seconds", ()].n_values)
    writer.join()
    assert seen == sorted(seen)
    assert registry.snapshot().since_start["x_seconds", ()].n_values == 20_000
