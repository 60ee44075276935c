"""What a KV type costs: the arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perf.kv_types import Predictions


def predictions(rows: list[list[float]], truth: list[int]) -> Predictions:
    return Predictions(np.log(np.array(rows, np.float32)), np.array(truth))


EXACT = predictions([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], [0, 1])


def test_perplexity_is_that_of_the_tokens_that_came() -> None:
    assert EXACT.perplexity == pytest.approx(1.0 / math.sqrt(0.5 * 0.8))


def test_equal_predictions_do_not_diverge() -> None:
    assert EXACT.divergence(EXACT) == pytest.approx([0.0, 0.0])
    assert EXACT.agreement(EXACT) == 1.0


def test_other_predictions_diverge_row_by_row() -> None:
    other = predictions([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]], [0, 1])
    assert EXACT.divergence(other) == pytest.approx([0.25 * math.log(2), 0.0], abs=1e-6)
    assert EXACT.agreement(other) == 0.5
