"""Predictions, the calls that rows share, storage."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policy.build import CPU, DEVICE, GPU, MIXING, MS
from uma_core.policy.cost.calibrate import guess
from uma_core.policy.cost.model import CostModel


def test_calls_follow_the_measured_times_alone():
    assert CPU.call_sizes(2, 512) == [1, 1], "two separate rows are faster than one call of two on this CPU"
    assert GPU.call_sizes(2, 512) == [2]
    assert CPU.call_sizes(8, 512) == [8]


@given(st.integers(0, 64), st.integers(1, 64))
def test_calls_hold_all_rows_within_the_batch(n_rows, n_batch):
    sizes = CPU.call_sizes(n_rows, n_batch)
    assert sum(sizes) == n_rows
    assert all(1 <= size <= n_batch for size in sizes)


@pytest.mark.parametrize("model", [CPU, GPU, guess(DEVICE)], ids=["cpu", "gpu", "guess"])
def test_storage_gives_an_equal_model(model):
    assert CostModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"decode": 3},
        {**CPU.to_dict(), "decode": None},
        {**CPU.to_dict(), "prefill": [[8, 64], [1.0], [0.0]]},
        {**CPU.to_dict(), "piece": [[], [], []]},
        {**CPU.to_dict(), "splits": [[], [1]]},
        {**CPU.to_dict(), "factors": [1.0]},
        {**CPU.to_dict(), "counts": [1.0]},
        {**CPU.to_dict(), "chunks": []},
    ],
)
def test_foreign_data_is_refused(data):
    with pytest.raises(ValueError, match="not a stored cost model"):
        CostModel.from_dict(data)


@given(st.integers(1, 64), st.integers(0, 8192))
def test_time_grows_with_context_and_a_prompt_is_worth_its_chunks(n_rows, n_kv):
    assert CPU.decode_ns(n_rows, n_kv + 1000) >= CPU.decode_ns(n_rows, n_kv) > 0
    assert CPU.rows_ns(n_rows, n_kv) <= CPU.decode_ns(n_rows, n_kv) * 1.001 + 1000
    assert CPU.prompt_ns(n_rows * 10, n_kv) >= CPU.prefill_ns(1, 0)


def test_what_a_prompts_rows_add_grows_with_rows_and_context():
    assert MIXING.mixed_ns(1, 7, 0) == pytest.approx(1.8 * MS, rel=1e-3)
    assert (
        MIXING.mixed_ns(1, 3, 0) < MIXING.mixed_ns(1, 7, 0) < MIXING.mixed_ns(1, 7, 1000) < MIXING.mixed_ns(1, 15, 1000)
    )
