"""What Ray Serve has reported."""

from __future__ import annotations

from uma_gateway.cluster import replicas


def test_the_last_report_of_a_deployment_counts() -> None:
    assert replicas.running("test_replicas") == {}
    replicas.told("test_replicas", {"a": "1", "b": "2"})
    replicas.told("test_replicas", {"b": "2"})
    replicas.told("another", {"c": "3"})
    found = replicas.running("test_replicas")
    assert found == {"b": "2"}
    found.clear()
    assert replicas.running("test_replicas") == {"b": "2"}
