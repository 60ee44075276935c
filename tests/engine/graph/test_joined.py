"""Joined matrices: which ones are joined, and that their products are those of each matrix alone."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from tests.engine.conftest import DRAFT
from tests.engine.drive import generate, read, tokens_of
from tests.engine.graph.conftest import SMALL
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.graph.joined import Joined
from uma_core.engine.header import Header, TensorPlace
from uma_core.engine.lib import lib

COPIED = replace(SMALL, load_mode="none")  # as on a device that cannot read the mapped file


def test_logits_are_those_of_each_matrix_alone() -> None:
    with (
        closing(GraphEngine(DRAFT, COPIED, is_stock=True)) as joined,
        closing(GraphEngine(DRAFT, SMALL, is_stock=True)) as plain,
    ):
        assert joined._loaded is not None and joined._loaded.weights.part("blk.0.attn_k") is not None
        assert plain._loaded is not None and plain._loaded.weights.part("blk.0.attn_k") is None
        for engine in (joined, plain):
            generate(engine, 0, read(engine, 0, tokens_of(engine, 70)), 3)
        assert np.array_equal(joined.logits(0), plain.logits(0))


def test_parts_lie_one_after_another_and_are_of_the_file() -> None:
    with closing(Header(DRAFT)) as header, closing(Joined(header)) as joined:
        names = [f"blk.0.{name}" for name in ("attn_q", "attn_k", "attn_v")]
        parts = [joined.parts[name] for name in names]
        places = [header.tensors[f"{name}.weight"] for name in names]
        assert len({part.whole for part in parts}) == 1
        assert [part.first for part in parts] == [0, places[0].ne[1], places[0].ne[1] + places[1].ne[1]]
        assert parts[0].whole.ne[1] == sum(place.ne[1] for place in places)
        for name, part, place in zip(names, parts, places, strict=True):
            tensor = header.tensor(f"{name}.weight")
            assert (tensor.view_src, tensor.view_offs) == (part.whole, part.first * place.n_bytes // place.ne[1])


@pytest.mark.parametrize(
    ("change", "is_joined"),
    [
        ({}, True),
        ({"type": int(lib.GGML_TYPE_F16)}, False),  # as in files that keep V in more bits
        ({"name": ""}, False),
    ],
)
def test_matrices_of_other_types_are_left_alone(change: dict[str, int], is_joined: bool) -> None:
    with closing(Header(DRAFT)) as header:
        v = header.tensors.pop("blk.0.attn_v.weight")
        other = TensorPlace(**{**v._asdict(), **change})
        if other.name:
            header.tensors[other.name] = other
        with closing(Joined(header)) as joined:
            assert ("blk.0.attn_q" in joined.parts) is is_joined
            assert "blk.1.attn_q" in joined.parts
