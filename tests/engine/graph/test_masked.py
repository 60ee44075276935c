"""Spans and masks of attention on a device, compared with what each row may see by its positions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.conftest import DRAFT
from tests.engine.drive import generate, read, tokens_of
from tests.engine.graph.conftest import SMALL
from tests.engine.graph.models import MODELS, Model
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.graph.store import PAGE
from uma_core.engine.lib import ffi, lib, text

N_PAGES, N_SEQ, N_PAGES_SEQ, STEP = 40, 5, 12, 256
N_CELLS = N_PAGES * PAGE
RUN = st.tuples(
    st.integers(0, N_SEQ - 1), st.integers(0, 700), st.integers(1, 68)
)  # sequence, first position, number of positions
RUNS = st.lists(RUN, min_size=1, max_size=4, unique_by=lambda run: run[0])


def painted(
    runs: list[tuple[int, int, int]], table: np.ndarray, window: int
) -> tuple[tuple[int, int], list[np.ndarray]]:
    """Return (first cell, cells) and the masks as C makes them. Each mask is (rows, cells): whether a row sees a
    cell.
    """
    seq, pos = (
        np.array(x, np.int32)
        for x in zip(*[(s, p) for s, p0, n in runs for p in range(p0, min(p0 + n, N_PAGES_SEQ * PAGE))], strict=True)
    )
    rows = ffi.new(
        "uma_rows *",
        {"n": len(pos), "pos": ffi.from_buffer("int32_t *", pos), "seq_id": ffi.from_buffer("int32_t *", seq)},
    )
    pages, span = ffi.from_buffer("int32_t *", table), ffi.new("int64_t[2]")
    lib.uma_mask_span(rows, pages, N_PAGES_SEQ, N_CELLS, span)
    masks = [np.full((len(pos), span[1]), 7, np.uint16) for _ in range(2)]
    full, windowed = (ffi.from_buffer("uint16_t *", mask) for mask in masks)
    sizes = {"first": span[0], "n_cells": span[1], "n_window": window}
    lib.uma_mask_fill(ffi.new("uma_mask *", {"full": full, "window": windowed, **sizes}), rows, pages, N_PAGES_SEQ)
    assert set(np.unique(masks)) <= {0, 0xFC00}, "seen, or minus infinity"
    return (span[0], span[1]), [mask == 0 for mask in masks]


@given(RUNS, st.integers(1, 300), st.integers(0, 2**32))
def test_a_row_sees_its_own_positions_and_no_other_cell(
    runs: list[tuple[int, int, int]], window: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    table = np.stack([draw.permutation(N_PAGES)[:N_PAGES_SEQ] for _ in range(N_SEQ)]).astype(np.int32)
    (first, n), (full, windowed) = painted(runs, table, window)
    assert first % STEP == 0 and n % STEP == 0 and first + n <= N_CELLS
    row = 0
    for seq, p0, n_run in runs:
        for pos in range(p0, min(p0 + n_run, N_PAGES_SEQ * PAGE)):
            cells = [int(table[seq, p // PAGE]) * PAGE + p % PAGE - first for p in range(pos + 1)]
            assert sorted(cells) == np.flatnonzero(full[row]).tolist()
            assert sorted(cells[-window:]) == np.flatnonzero(windowed[row]).tolist()
            row += 1


@pytest.mark.parametrize(
    ("pages", "span"), [([0], (0, 256)), ([3, 4], (0, 512)), ([4, 7], (256, 256)), ([9, 5], (256, 512))]
)
def test_a_span_begins_and_ends_at_steps_around_the_pages(pages: list[int], span: tuple[int, int]) -> None:
    table = np.zeros((N_SEQ, N_PAGES_SEQ), np.int32)
    table[2, : len(pages)] = pages
    assert painted([(2, len(pages) * PAGE - 17, 17)], table, 1)[0] == span


@pytest.mark.parametrize(
    ("pages", "span"), [([0], (0, 1024)), ([15, 16], (0, 2048)), ([17], (1024, 1024)), ([33, 39], (2048, 512))]
)
def test_the_span_of_few_rows_goes_by_larger_steps_as_far_as_there_are_cells(
    pages: list[int], span: tuple[int, int]
) -> None:
    table = np.zeros((N_SEQ, N_PAGES_SEQ), np.int32)
    table[2, : len(pages)] = pages
    assert painted([(2, len(pages) * PAGE - 16, 16)], table, 1)[0] == span


def test_a_window_as_long_as_the_sequence_hides_nothing() -> None:
    table = np.arange(N_SEQ * N_PAGES_SEQ, dtype=np.int32).reshape(N_SEQ, -1) % N_PAGES
    _, (full, windowed) = painted([(1, 0, 130)], table, 130)
    assert (full == windowed).all()


def test_one_graph_serves_every_span() -> None:
    with closing(GraphEngine(DRAFT, replace(SMALL, n_ctx=4096), is_stock=True)) as engine:
        assert engine.decoder is not None
        forwards, spans = set(), []
        for seq_id, n in ((0, 10), (1, 900), (2, 900)):
            generate(engine, seq_id, read(engine, seq_id, tokens_of(engine, n)), 30)
            forward = engine.decoder._last
            assert forward is not None
            forwards.add(forward)
            spans.append(forward.span)
            mask = forward.native.mask
            assert (
                (mask.first, mask.n_cells)
                == forward.span
                == (mask.views[0].view_offs // mask.views[0].nb[1], mask.views[0].ne[1])
            )
            assert mask.inputs[0].ne[0] == forward.span.n < forward.batch.n_span
    assert len(forwards) == 1 and len(set(spans)) > 1


def test_nothing_is_computed_between_the_stores_and_attention(written: Callable[[Model], str]) -> None:
    """On a Hopper GPU, attention may begin before the kernel that wrote K is done, if another kernel is between
    them.
    """
    with closing(GraphEngine(written(MODELS["qwen3"]), SMALL, is_stock=True)) as engine:
        read(engine, 0, tokens_of(engine, 40))
        generate(engine, 0, 40, 1)
        assert engine.decoder is not None and engine.decoder._last is not None
        graph = engine.decoder._last.native.graph
        names = [text(lib.ggml_op_desc(lib.ggml_graph_node(graph, i))) for i in range(lib.ggml_graph_n_nodes(graph))]
    computed = [name for name in names if name not in ("VIEW", "RESHAPE", "PERMUTE")]
    before = [computed[i - 1] for i, name in enumerate(computed) if name == "FLASH_ATTN_EXT"]
    assert before == ["SET_ROWS"] * 2
