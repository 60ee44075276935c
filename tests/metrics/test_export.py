"""The two outward forms of the metrics."""

import json
import math
import re

import pytest

from uma_core.metrics import catalog as m
from uma_core.metrics.export import DERIVED, PREFIX, to_json, to_prometheus

DOCUMENTED = """
tokens_generated_total batch_calls_total last_batch_size batch_size_last decode_ms_last decode_ms_ewma decode_ms_avg
active_sessions sessions tokens_total avg_batch p50_ms p95_ms model tokens_per_tick served_decoders
parked_sessions bmt_estimate_last bmt_budget
prefill_guard_active ticks_over_budget sampling_ms_last time_logits_to_first_chunk overlap_active worst_pause_ms ttf5_ms
slo_violations prediction_error preemptions_total plan_violations_total kv_cells_used kv_cells_reserved kv_cells_total
errors_total requests_total rx_bytes_total tx_bytes_total slow_clients_total alloc_warnings_total
"""

SAMPLE = re.compile(r'^([a-z_][a-z0-9_]*)(\{(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (\S+)$')


@pytest.fixture
def registry():
    registry = m.new_registry()
    registry.info["model"] = 'odd "name"\n\\.gguf'
    return registry


def samples(text):
    """Parse the text format; fails on any line that is neither a comment nor a sample."""
    found = {}
    for line in text.splitlines():
        if not line.startswith(("# HELP ", "# TYPE ")):
            match = SAMPLE.match(line)
            assert match, line
            key = match[1] + (match[2] or "")
            assert key not in found, f"twice: {key}"
            found[key] = float(match[3])
    return found


def test_the_documented_names_are_there(registry):
    assert set(DOCUMENTED.split()) <= to_json(registry.snapshot()).keys()


def test_json_names_are_unique():
    names = [metric.json_name for metric in m.METRICS] + [derived.name for derived in DERIVED]
    assert len(names) == len(set(names))


def test_json_is_json_and_counts(registry):
    registry.counter(m.TOKENS_GENERATED).add(7)
    registry.counter(m.ERRORS, code="E_PROTO_001").add()
    registry.gauge(m.DECODE_LAST).set(12_345_678)
    registry.gauge(m.TOKENS_PER_TICK, phase="prefill").set(64)
    registry.counter(m.SLO_VIOLATIONS, kind="tbt", lane="interactive").add(2)
    document = json.loads(json.dumps(to_json(registry.snapshot())))
    assert document["tokens_generated_total"] == document["tokens_total"] == 7
    assert document["errors_total"]["E_PROTO_001"] == 1
    assert document["decode_ms_last"] == 12.3457
    assert document["tokens_per_tick"] == {"decode": 0, "prefill": 64}
    assert document["slo_violations"] == {
        "ttft": {"interactive": 0, "background": 0},
        "tbt": {"interactive": 2, "background": 0},
    }
    assert document["model"] == 'odd "name"\n\\.gguf'


def test_session_counts_follow_from_the_phases(registry):
    for phase, n in (("queued", 5), ("prefill", 1), ("decode", 3), ("parked", 2)):
        registry.gauge(m.SESSIONS, phase=phase).set(n)
    document = to_json(registry.snapshot())
    assert (document["sessions"], document["active_sessions"], document["parked_sessions"]) == (11, 4, 2)


def test_latency_summaries(registry):
    for ms in range(1, 101):
        registry.histogram(m.INTER_TOKEN, lane="interactive").observe(ms * 1_000_000)
        registry.histogram(m.DECODE_CALL).observe(ms * 1_000_000)
        registry.histogram(m.BATCH_SIZE).observe(3)
    document = to_json(registry.snapshot())
    assert document["p50_ms"] == pytest.approx(50, rel=0.05)
    assert document["p95_ms"] == pytest.approx(95, rel=0.05)
    assert document["decode_ms_avg"] == 50.5
    assert document["avg_batch"] == document["batch_size"]["p95"] == 3
    assert document["inter_token_ms"]["interactive"]["count"] == 100
    assert document["inter_token_ms"]["interactive"]["max"] == 100


def test_prometheus_text_parses_and_agrees(registry):
    registry.counter(m.RX_BYTES).add(11)
    registry.gauge(m.UPTIME).set(1_500_000_000)
    for value in (1_000, 2_000_000, 3_000_000_000, 500_000_000_000):
        registry.histogram(m.TTFT, lane="interactive").observe(value)
    text = to_prometheus(registry.snapshot())
    found = samples(text)
    assert text.endswith("\n")
    assert found[PREFIX + "rx_bytes_total"] == 11
    assert found[PREFIX + "uptime_seconds"] == 1.5
    assert found[PREFIX + 'info{model="odd \\"name\\"\\n\\\\.gguf"}'] == 1
    name = PREFIX + "time_to_first_token_seconds"
    assert found[name + '_count{lane="interactive"}'] == 4
    assert found[name + '_sum{lane="interactive"}'] == pytest.approx(503.002001)
    assert found[name + '_bucket{lane="interactive",le="+Inf"}'] == 4


def test_prometheus_buckets_are_cumulative_and_true(registry):
    values = [n * n * 1_000 for n in range(1, 1000)]
    for value in values:
        registry.histogram(m.DECODE_CALL).observe(value)
    buckets = [
        (float(re.search('le="([^"]+)"', key)[1]), n)
        for key, n in samples(to_prometheus(registry.snapshot())).items()
        if key.startswith(PREFIX + "decode_call_seconds_bucket")
    ]
    assert [bound for bound, _ in buckets] == sorted(bound for bound, _ in buckets)
    assert buckets[-1] == (math.inf, len(values))
    for bound, n in buckets[:-1]:
        assert n == sum(value <= bound * 1e9 * (1 + 1e-9) for value in values)


def test_every_metric_has_help_and_type_once(registry):
    text = to_prometheus(registry.snapshot())
    for metric in m.METRICS:
        assert text.count(f"# TYPE {PREFIX}{metric.name} {metric.kind.value}\n") == 1
        assert text.count(f"# HELP {PREFIX}{metric.name} ") == 1
