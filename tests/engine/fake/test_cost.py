"""Simulated devices: tables of times, linear between their entries."""

from __future__ import annotations

import pytest

from uma_core.engine.fake.cost import CPU_SHAPE, GPU_SHAPE, INSTANT, MS, FakeCost

COST = FakeCost(
    decode=((1, 10.0), (3, 30.0), (4, 100.0)),
    decode_cell_ns=2.0,
    prefill=((1, 10.0), (100, 1000.0)),
    prefill_cell_ns=((1, 4.0), (101, 2.0)),
    n_layer=10,
    node_share=0.5,
    piece_overhead_ns=0.0,
    copy_ns_per_byte=3.0,
    copy_fixed_ns=7.0,
)


@pytest.mark.parametrize(("n", "ns"), [(1, 10), (2, 20), (3, 30), (4, 100), (8, 200)])
def test_times_are_linear_between_entries_and_beyond_the_last(n: int, ns: float) -> None:
    assert COST.decode_ns([(1, 0)] * n) == ns


def test_a_row_costs_its_context() -> None:
    assert COST.decode_ns([(1, 50), (1, 100)]) == 20 + 2 * 150


def test_many_tokens_of_one_sequence_are_read_as_a_prompt() -> None:
    assert COST.decode_ns([(8, 0)]) == 200
    assert COST.decode_ns([(100, 30)]) == COST.prefill_ns(100, 30)


def test_a_prompt_costs_its_past_by_its_length() -> None:
    assert COST.prefill_ns(1, 10) == 10 + 4 * 10
    assert COST.prefill_ns(51, 10) == pytest.approx(10 + 990 * 50 / 99 + 3 * 51 * 10)
    assert COST.prefill_ns(1000, 1) == 10_000 + 2 * 1000, "the slope ends with its table"


def test_a_piece_is_the_heaviest_node_of_a_layer() -> None:
    assert COST.piece_ns(100, 0) == 1000 * 0.5 / 10
    assert COST.piece_ns(100, 10_000) == pytest.approx((COST.prefill_ns(100, 10_000) - 1000) / 10)


def test_a_copy_costs_its_bytes_and_its_start() -> None:
    assert COST.copy_ns(0) == 7 and COST.copy_ns(10) == 37


@pytest.mark.parametrize("shape", [CPU_SHAPE, GPU_SHAPE, INSTANT])
def test_the_first_row_takes_as_long_either_way(shape: FakeCost) -> None:
    assert shape.decode_ns([(1, 0)]) == shape.prefill_ns(1, 0) > 0


def test_the_devices_differ_where_schedules_depend_on_it() -> None:
    assert CPU_SHAPE.decode_ns([(1, 0)] * 2) > 2 * CPU_SHAPE.decode_ns([(1, 0)])
    assert GPU_SHAPE.decode_ns([(1, 0)] * 8) < 2.1 * GPU_SHAPE.decode_ns([(1, 0)])
    assert GPU_SHAPE.decode_ns([(1, 0)]) == 3.9 * MS
