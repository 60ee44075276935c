"""Answers of several daemons are merged into one."""

from __future__ import annotations

from typing import Any

from uma_core.metrics.catalog import CACHE_RESTORE, METRICS, Registry
from uma_core.metrics.export import to_json
from uma_gateway.cluster import merge
from uma_gateway.cluster.transport import Unit

UNITS = [Unit("a/m", "a", "m"), Unit("b/m", "b", "m")]


def summary(count: int, mean: float, p50: float, most: float) -> dict[str, float]:
    return {"count": count, "mean": mean, "p50": p50, "p95": most, "p99": most, "max": most}


def metrics(*documents: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = merge.metrics(
        [(unit, {"metrics": document}) for unit, document in zip(UNITS, documents, strict=True)]
    )["metrics"]
    return merged


def test_counts_add_up_and_times_and_shares_do_not() -> None:
    merged = metrics(
        {"tokens_total": 3, "p50_ms": 4.0, "decode_ms_avg": 5.0, "engine_ms_total": 6.0, "device_idle_share": 0.9},
        {"tokens_total": 4, "p50_ms": 3.0, "decode_ms_avg": 2.0, "engine_ms_total": 1.0, "device_idle_share": 0.8},
    )
    assert merged == {
        "tokens_total": 7,
        "p50_ms": 4.0,
        "decode_ms_avg": 5.0,
        "engine_ms_total": 7.0,
        "device_idle_share": 0.9,
    }
    assert metrics({"copy_free_ratio": 0.9}, {"copy_free_ratio": None}) == {"copy_free_ratio": 0.9}
    assert metrics({"copy_free_ratio": 0.9}, {"copy_free_ratio": 0.5}) == {"copy_free_ratio": 0.5}


def test_drafts_of_all_daemons_add_up() -> None:
    def status(n: int, saved_ms: float) -> dict[str, Any]:
        drafts = {"drafted": {"lookup": n}, "accepted": {"lookup": n}, "saved_ms": {"lookup": saved_ms}}
        return {"event": "reply", "state": "ready", "speculation": {"is_exact": True, "draft_model": None, **drafts}}

    merged = merge.status(list(zip(UNITS, [status(3, 20.5), status(4, -1.0)], strict=True)))
    assert merged["speculation"] == status(7, 19.5)["speculation"]
    assert metrics({"draft_saved_ms_total": {"lookup": 2.0}}, {"draft_saved_ms_total": {"lookup": -1.0}}) == {
        "draft_saved_ms_total": {"lookup": 1.0}
    }


def test_of_distributions_counts_add_up_and_the_worst_quantile_is_told() -> None:
    merged = metrics(
        {"cache_restore_ms": {"ram": summary(1, 10.0, 10.0, 30.0), "disk": summary(0, 0.0, 0.0, 0.0)}},
        {"cache_restore_ms": {"ram": summary(3, 2.0, 2.0, 40.0), "disk": summary(0, 0.0, 0.0, 0.0)}},
    )
    assert merged["cache_restore_ms"]["ram"] == summary(4, 4.0, 10.0, 40.0)
    assert merged["cache_restore_ms"]["disk"] == summary(0, 0.0, 0.0, 0.0)


def test_every_metric_of_a_daemon_has_a_place_in_the_sums() -> None:
    document = to_json(Registry(METRICS).snapshot())
    assert document[CACHE_RESTORE.json_name]["ram"].keys() == summary(0, 0.0, 0.0, 0.0).keys()
    assert metrics(document, document) == document, "of daemons that did nothing"


def test_no_sample_has_a_label_twice() -> None:
    """Prometheus refuses all samples of a scrape in which one has."""
    text = """# TYPE uma_info gauge\numa_info{version="1",model="a \\"b\\", node=\\"c\\"",backend="cpu"} 1\n"""
    told = merge.prometheus([(UNITS[0], text)]).splitlines()[1]
    own = """version="1",exported_model="a \\"b\\", node=\\"c\\"",backend="cpu\""""
    assert told == f"""uma_info{{{own},node="a",model="m",unit="a/m"}} 1"""


def test_budgets_of_caches_add_up_as_what_they_hold_does() -> None:
    first = {"is_on": True, "hit_ratio": 0.9, "ram": {"budget": 5, "bytes": 2}, "tenants": {}}
    second = {"is_on": True, "hit_ratio": 0.8, "ram": {"budget": 5, "bytes": 3}, "tenants": {"7": {"ram_bytes": 3}}}
    replies = [{"event": "reply", "stats": stats} for stats in (first, second)]
    merged = merge.cache(list(zip(UNITS, replies, strict=True)))
    assert merged["stats"] == {**second, "ram": {"budget": 10, "bytes": 5}}
    assert merged["units"]["a/m"] == {"stats": first}
