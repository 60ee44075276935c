"""Which node gets which model, for random nodes and models."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from uma_gateway.cluster.placement import missing, place

MODELS = ["a", "b", "c"]
needs = st.fixed_dictionaries({model: st.integers(0, 50) for model in MODELS})


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    need_mb = draw(needs)
    found = {}
    for i in range(draw(st.integers(0, 5))):
        models = draw(st.sets(st.sampled_from(MODELS)))
        refused = draw(st.sets(st.sampled_from(MODELS), max_size=1)) - models
        found[f"n{i}"] = {
            "free_mb": draw(st.integers(-10, 100)),
            "need_mb": need_mb,
            "models": {model: {} for model in models},
            "refused": dict.fromkeys(refused, "too large"),
        }
    return found


@given(clusters())
def test_a_model_goes_where_most_memory_is_free(nodes: dict[str, dict[str, Any]]) -> None:
    name = place("a", nodes)
    fit = [each for each in nodes.values() if "a" not in each["refused"]]
    if any("a" in each["models"] for each in nodes.values()) or not fit:
        assert name is None, "it is there, or may be nowhere"
    else:
        assert name is not None and "a" not in nodes[name]["refused"]
        assert nodes[name]["free_mb"] == max(each["free_mb"] for each in fit)


@given(clusters(), st.dictionaries(st.sampled_from(MODELS), st.integers(0, 6)))
def test_as_many_replicas_are_started_as_are_missing(nodes: dict[str, dict[str, Any]], wanted: dict[str, int]) -> None:
    started = list(missing(wanted, nodes))
    assert len(set(started)) == len(started)
    assert all(model not in nodes[name]["models"] and model not in nodes[name]["refused"] for model, name in started)
    count = Counter(model for model, _ in started)
    for model, n in wanted.items():
        n_there = sum(model in node["models"] for node in nodes.values())
        n_fit = sum(model not in node["models"] and model not in node["refused"] for node in nodes.values())
        assert count[model] == max(0, min(n - n_there, n_fit))


def test_two_large_models_do_not_go_to_one_node() -> None:
    empty = {"free_mb": 100, "need_mb": {"a": 60, "b": 70}, "models": {}}
    assert sorted(missing({"a": 1, "b": 1}, {"n0": empty, "n1": empty})) in (
        [("a", "n0"), ("b", "n1")],
        [("a", "n1"), ("b", "n0")],
    )
