"""Every metric that is declared: its name, its unit, its labels."""

import re

from uma_core.errors import ErrorCode
from uma_core.metrics import catalog as m
from uma_core.metrics.core import Kind
from uma_core.types import FinishReason


def test_prometheus_names_follow_the_rules():
    for metric in m.METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert ("_seconds" in metric.name) == (metric.unit == "seconds")
        assert not metric.name.removesuffix("_total").endswith(("_ms", "_ns"))
        assert metric.help and not metric.help.endswith(".")


def test_no_name_is_declared_twice():
    assert len({metric.name for metric in m.METRICS}) == len(m.METRICS)


def test_a_new_registry_has_a_series_of_each_with_nothing_in_it():
    seen = {name for name, _ in m.new_registry().snapshot().since_start}
    assert seen == {metric.name for metric in m.METRICS if metric.kind is Kind.HISTOGRAM}


def test_labels_are_closed_sets_that_follow_the_code():
    assert set(m.REQUESTS.labels["reason"]) == {reason.value for reason in FinishReason}
    assert set(m.ERRORS.labels["code"]) == {error.code for error in ErrorCode}
    assert all(values and len(set(values)) == len(values) for metric in m.METRICS for values in metric.labels.values())


def test_bounds_ascend():
    for metric in m.METRICS:
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
