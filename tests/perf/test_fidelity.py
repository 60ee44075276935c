"""The measure of exactness: how close two computations must be."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from perf.fidelity import divergence, perplexity, rewrite
from tests.engine.conftest import DRAFT


def test_the_exact_file_has_the_values_of_the_quantised_one(tmp_path) -> None:
    path, exactly = tmp_path / "q.gguf", tmp_path / "f.gguf"
    assert rewrite(Path(DRAFT), "q4_0", path, exactly)
    ours, exact = ({t.name: t for t in gguf.GGUFReader(p).tensors} for p in (path, exactly))
    assert ours.keys() == exact.keys() == {t.name for t in gguf.GGUFReader(DRAFT).tensors}
    matrices = [name for name, t in ours.items() if t.tensor_type == gguf.GGMLQuantizationType.Q4_0]
    assert "token_embd.weight" in matrices
    for name in matrices:
        assert np.array_equal(gguf.dequantize(ours[name].data, ours[name].tensor_type), exact[name].data)


def test_a_model_whose_rows_no_block_divides_is_left_out(tmp_path) -> None:
    assert not rewrite(Path(DRAFT), "q4_k", tmp_path / "q.gguf", tmp_path / "f.gguf")  # rows of 192


def test_divergence_is_0_of_the_same_and_the_sum_over_the_vocabulary_else() -> None:
    p, q = np.log(np.array([[0.5, 0.25, 0.25]])), np.log(np.array([[0.25, 0.5, 0.25]]))
    assert divergence(p, p) == pytest.approx([0.0])
    assert divergence(p, q) == pytest.approx([0.5 * np.log(2) - 0.25 * np.log(2)])
    assert perplexity(np.concatenate([p, p]), np.array([0, 1])) == pytest.approx(np.sqrt(8))
