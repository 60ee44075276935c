"""Tensors by name: a wrong one is refused by its name, and what no graph reads is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.engine.graph.models import MODELS, write
from uma_core.engine.graph.shape import Unsupported
from uma_core.engine.graph.weights import Weights
from uma_core.engine.header import Header
from uma_core.engine.lib import lib

UP, NORM = "blk.0.ffn_up.weight", "blk.0.attn_norm.weight"


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Header]:
    path: Path = tmp_path_factory.mktemp("weights") / "model.gguf"
    with closing(Header(write(MODELS["llama"], path))) as found:
        yield found


def test_a_tensor_of_another_shape_or_type_is_refused_by_name(header: Header) -> None:
    weights = Weights(header)
    n_in, n_out = header.tensors[UP].ne[:2]
    assert weights.matrix(UP, n_in, n_out) and weights.vector(NORM, n_in)
    for attempt in (
        lambda: weights.matrix(UP, n_out, n_in),
        lambda: weights.matrix(UP, n_in, n_out, 2),
        lambda: weights.vector(UP, n_in * n_out),
        lambda: weights.factor(UP, n_in, n_out + 1),
    ):
        with pytest.raises(Unsupported, match=f"{UP} of this shape or type"):
            attempt()
    with pytest.raises(Unsupported, match=f"{NORM} of this shape or type"):
        weights.vector(NORM, n_in + 1)
    assert header.tensors[NORM].type == lib.GGML_TYPE_F32


def test_a_file_without_a_tensor_is_told(header: Header) -> None:
    weights = Weights(header)
    assert not weights.find("none.weight")
    with pytest.raises(Unsupported, match=r"a file without none\.weight"):
        weights.get("none.weight")


def test_what_was_not_asked_for_is_unused(header: Header) -> None:
    weights = Weights(header)
    assert weights.unused() == sorted(header.tensors)
    weights.find(UP)
    weights.find("none.weight")
    assert weights.unused() == sorted(header.tensors.keys() - {UP})


def test_only_factors_are_read_by_products(header: Header) -> None:
    weights = Weights(header)
    n_in, n_out = header.tensors[UP].ne[:2]
    weights.vector(NORM, n_in)
    assert not weights.factors
    assert weights.factor(UP, n_in, n_out) == weights.factors[UP]
    assert weights.repacked() is None and weights.part(UP) is None
