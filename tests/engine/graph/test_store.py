"""The layout of K and V in snapshots: layers that write them, one after another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.engine.graph.paging import PARTS, ROPE, SHAPE
from uma_core.engine.graph.shape import Layer, Unsupported
from uma_core.engine.graph.store import Layout


def test_layers_that_read_anothers_kv_have_none_of_their_own() -> None:
    layout = Layout(SHAPE, "f16")
    assert [(n, part.n_head, part.row_bytes) for n, part in layout.runs] == [(n, h, size) for n, _, h, size in PARTS]
    assert layout.position_bytes == 2 * 64 + 2 * 192 + 2 * 128
    assert [layout.index(1, part) for part in (0, 1)] == [2, 3]
    with pytest.raises(KeyError):
        layout.index(2, 0)


def test_v_may_be_the_beginning_of_k() -> None:
    latent = replace(SHAPE, layers=(Layer(4, 1, 576, 512, ROPE, 0, has_v=False),))
    layout = Layout(latent, "f16")
    assert layout.index(0, 0) == layout.index(0, 1) == 0
    assert layout.position_bytes == 2 * 576


def test_recurrent_layers_have_none() -> None:
    layers = (replace(SHAPE.layers[0], kv=-1), replace(SHAPE.layers[0], kv=1))
    layout = Layout(replace(SHAPE, layers=layers), "f16")
    assert layout.position_bytes == 2 * 64 and layout.index(1, 0) == 0


def test_views_cover_a_snapshot_without_gaps() -> None:
    layout, n = Layout(SHAPE, "f16"), 7
    blob = np.zeros(n * layout.position_bytes, np.uint8)
    for view in layout.views(blob, n):
        view += 1
    assert (blob == 1).all()
    assert [view.shape for view in layout.views(blob, n)] == [
        (parts, n, heads, size) for parts, _, heads, size in PARTS
    ]


def test_heads_that_are_no_whole_blocks_of_the_kv_type_are_refused() -> None:
    odd = Layer(2, 1, 40, 40, ROPE, 0)
    with pytest.raises(Unsupported, match="KV type q8_0 with heads of length 40"):
        Layout(replace(SHAPE, layers=(odd,)), "q8_0")
