"""Bytes that calls move through memory."""

from __future__ import annotations

import pytest

from tests.policy.build import DEVICE
from uma_core.policy import traffic

PLAIN = DEVICE._replace(weight_bytes=1000, kv_bytes_per_cell=10)
EXPERTS = PLAIN._replace(expert_bytes=800, n_expert=8, n_expert_used=2)


def test_a_call_reads_all_weights_once_however_many_tokens_it_has():
    assert traffic.weights(PLAIN, 1) == traffic.weights(PLAIN, 512) == 1000
    assert traffic.weights(PLAIN._replace(n_expert=8, n_expert_used=2), 1) == 1000, "a model whose experts are not told"


def test_tokens_touch_more_experts_the_more_they_are_and_never_all_twice():
    touched = [traffic.weights(EXPERTS, n) - 200 for n in (0, 1, 2, 512)]
    assert touched == [0, 200, 350, 800]


def test_a_decode_row_reads_its_context_and_writes_one_cell():
    assert traffic.decode_call(PLAIN, 1, 0) == 1000 + 10
    assert traffic.decode_call(PLAIN, 3, 600) == 1000 + 603 * 10


@pytest.mark.parametrize(("n_tokens", "n_reads"), [(1, 1), (64, 1), (65, 2), (512, 8)])
def test_a_chunk_reads_its_context_once_for_each_tile_of_rows(n_tokens, n_reads):
    assert traffic.chunk(PLAIN, n_tokens, 100) == 1000 + (100 * n_reads + n_tokens) * 10
    assert traffic.chunk(PLAIN, n_tokens, 0) == 1000 + n_tokens * 10
