"""Which rows there are, and when one is met."""

from __future__ import annotations

import math

import pytest

from perf.criteria import (
    ON_CPU,
    ON_GPU,
    Against,
    Criterion,
    best_peer,
    clean_rows,
    for_engine,
    judge,
    labels_for,
    on_gpu,
    with_isa,
)
from perf.peers import PEER_VARIANTS
from perf.results import Cell
from perf.scenarios import SCENARIOS
from tests.perf.made import make, rows


def test_ratio_is_taken_repeat_by_repeat() -> None:
    results = make({"solo": {"uma": rows("ttft_ms", 10, 40, 90), "llama-server": rows("ttft_ms", 10, 20, 30)}})
    verdict = judge(results, Criterion("solo", "x", "ttft_ms", 2.0, Against.PEER))
    assert (verdict.value, verdict.low, verdict.high, verdict.n, verdict.n_within) == (2.0, 1.0, 3.0, 3, 2)
    assert verdict.is_met is False, "2 of 3 are not 4 of 5"


@pytest.mark.parametrize(
    ("values", "met"),
    [
        ((1.0, 1.1, 1.1, 1.2, 1.3), True),  # 4 of 5
        ((1.0, 1.1, 1.1, 1.3, 1.3), False),  # its median is within the bound, but two of five are not
        ((1.0, 1.1, 1.3, 1.3, 1.3), False),
        ((1.0, 1.1, 1.1, 1.1, math.nan), True),
        ((1.0, 1.1, 1.1, 1.3, math.nan), False),  # a failed repeat is not within the bound
        ((1.0, 1.1, 1.3), False),
        ((1.0, 1.2), True),
        ((1.0,) * 8 + (1.3,) * 2, True),
        ((1.0,) * 7 + (1.3,) * 3, False),
    ],
)
def test_a_row_is_met_where_its_median_and_four_of_five_repeats_are(values: tuple[float, ...], met: bool) -> None:
    assert judge(make({"s": {"uma": rows("f", *values)}}), Criterion("s", "x", "f", 1.2)).is_met is met
    lower = [2.4 - value for value in values]
    assert judge(make({"s": {"uma": rows("f", *lower)}}), Criterion("s", "x", "f", 1.2, is_floor=True)).is_met is met


@pytest.mark.parametrize(
    ("value", "limit", "is_floor", "met"),
    [(1.2, 1.2, False, True), (1.21, 1.2, False, False), (23, 24, True, False), (24, 24, True, True)],
)
def test_limits_are_inclusive(value: float, limit: float, is_floor: bool, met: bool) -> None:
    results = make({"s": {"uma": rows("f", value)}})
    assert judge(results, Criterion("s", "x", "f", limit, is_floor=is_floor)).is_met is met


def test_nothing_measured_is_no_verdict() -> None:
    for results in (make({}), make({"s": {"uma": rows("other", 1.0)}})):
        verdict = judge(results, Criterion("s", "x", "f", 1.0))
        assert verdict.is_met is None and verdict.word == "not measured"
    peer_lost = make({"s": {"uma": rows("f", 1.0), "llama-server": rows("f", math.nan)}})
    assert judge(peer_lost, Criterion("s", "x", "f", 1.0, Against.PEER)).is_met is None


@pytest.mark.parametrize("against", [Against.LIMIT, Against.PEER])
def test_what_every_repeat_lost_is_missed(against: Against) -> None:
    results = make({"s": {"uma": rows("f", math.nan, math.nan), "llama-server": rows("f", 1.0, 1.0)}})
    verdict = judge(results, Criterion("s", "x", "f", 1.0, against))
    assert verdict.word == "MISSED" and verdict.n_within == 0


def test_a_repeat_that_lost_a_stream_is_not_within() -> None:
    """A stream that ends early, or never begins, leaves more for the others."""
    figures = [{"f": 1.0, "failed_n": float(n)} for n in (0, 0, 1, 0, 2)]
    results = make({"s": {"uma": figures, "llama-server": rows("f", *[1.0] * 5)}})
    for against in (Against.LIMIT, Against.PEER):
        verdict = judge(results, Criterion("s", "x", "f", 1.0, against))
        assert (verdict.n_within, verdict.n, verdict.is_met) == (3, 5, False)


def test_best_peer_is_the_fastest_configuration() -> None:
    row = {
        "uma": rows("makespan_ms", 10),
        "llama-server": rows("makespan_ms", 12),
        "llama-server:kvu": rows("makespan_ms", 8),
    }
    results = make({"storm": row})
    assert best_peer(results, "storm", "makespan_ms") == "llama-server:kvu"
    verdict = judge(results, Criterion("storm", "x", "makespan_ms", 1.05, Against.BEST_PEER))
    assert verdict.value == 1.25 and verdict.is_met is False
    results.cells["storm"]["llama-server"] = Cell(rows("makespan_ms", math.nan))
    assert best_peer(results, "storm", "makespan_ms") == "llama-server:kvu", "what failed is not the fastest"


def test_clean_rows_count_ours_alone() -> None:
    results = make({"s": {"uma": rows("f", 1), "llama-server": rows("f", 1)}})
    results.cells["s"]["llama-server"].errors.append("lost")
    results.allocator_warnings = {"uma:guard-off": 1, "llama-server": 5}
    assert clean_rows(results) == [("errors: 0", True), ("allocator warnings: 1", False)]


def test_the_rows_of_an_instruction_set_need_their_own_servers() -> None:
    criteria = (*ON_CPU, *with_isa("avx2", ON_CPU))
    assert set(labels_for("throughput", criteria)) == {
        "uma", "uma:guard-off", "uma:isa=avx2", "uma:guard-off,isa=avx2", "llama-server"
    }  # fmt: skip


def test_acceptance_meets_the_servers_it_judges_by() -> None:
    assert labels_for("solo") == ("uma", "llama-server")
    assert set(labels_for("storm")) == {"uma", *PEER_VARIANTS}
    assert "uma:guard-off" in labels_for("throughput")


def test_every_acceptance_row_has_its_scenario() -> None:
    assert {c.scenario for c in (*ON_CPU, *ON_GPU)} <= set(SCENARIOS)


def test_another_engine_keeps_the_same_promises_and_is_faster() -> None:
    held = for_engine("graph")
    assert [(c.scenario, c.figure, c.limit) for c in held[:-1]] == [(c.scenario, c.figure, c.limit) for c in ON_CPU]
    assert set(labels_for("storm", held)) == {"uma:engine=graph", *PEER_VARIANTS}
    assert labels_for("throughput", held) == (
        "uma:engine=graph",
        "uma:guard-off,engine=graph",
        "llama-server",
        "uma:engine=llama",
    )
    assert for_engine("auto") == ON_CPU
    assert {c.ours for c in for_engine("llama") if c.scenario == "storm"} == {"uma:engine=llama"}
    assert not any(c.against is Against.LLAMA_ENGINE for c in for_engine("llama"))


def test_on_a_gpu_an_engine_by_name_is_held_to_the_same_rows_beside_the_default():
    assert on_gpu("auto") == ON_GPU
    rows = on_gpu("graph")
    assert [(c.ours, c.figure, c.limit) for c in rows[len(ON_GPU) :]] == [
        ("uma:engine=graph", c.figure, c.limit) for c in ON_GPU
    ]
    assert len({(c.scenario, c.what) for c in rows}) == len(rows)
    assert {"uma", "uma:engine=graph", "llama-server:kvu"} <= set(labels_for("storm", rows))
