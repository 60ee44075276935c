"""KV on a device: cells are whole spans, hold numbers from the start, and are copied where they are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.engine.graph.paging import PARTS, SHAPE
from uma_core.config.options import EngineOptions
from uma_core.engine.graph.cells import STEP, Cells
from uma_core.engine.graph.device import device_of
from uma_core.engine.graph.store import PAGE

N_PAGES = 5


@pytest.fixture
def cells() -> Iterator[Cells]:
    made = Cells(SHAPE, "f16", N_PAGES, device_of(EngineOptions(n_gpu_layers=0), is_stock=True), False)
    yield made
    made.close()
    made.close()  # idempotent


def bytes_of(n: int, seed: int | None = None) -> list[np.ndarray]:
    """Return n positions as a snapshot has them."""
    rng = np.random.default_rng(seed)
    shapes = [(parts, n, heads, size) for parts, _, heads, size in PARTS]
    return [
        np.zeros(shape, np.uint8) if seed is None else rng.integers(0, 256, shape).astype(np.uint8) for shape in shapes
    ]


def read(cells: Cells, page: int, begin: int, end: int) -> list[np.ndarray]:
    found = bytes_of(end - begin, 0)
    cells.read(page, begin, end, found)
    return found


def test_a_span_of_whole_steps_always_has_cells(cells: Cells) -> None:
    assert cells.n_cells % STEP == 0 and cells.n_cells >= N_PAGES * PAGE
    assert cells.n_bytes == cells.n_cells * sum(parts * heads * size for parts, _, heads, size in PARTS)


def test_cells_that_nobody_wrote_are_numbers(cells: Cells) -> None:
    assert all(not part.any() for part in read(cells, N_PAGES - 1, 0, PAGE))


def test_what_is_written_is_read_and_copied_and_nothing_beside_it(cells: Cells) -> None:
    values = bytes_of(20, 1)
    cells.write(1, 10, 30, values)
    cells.copy(1, 3, 12, 25)
    for found, expected in zip(read(cells, 1, 0, PAGE), values, strict=True):
        assert np.array_equal(found[:, 10:30], expected)
        assert not found[:, :10].any() and not found[:, 30:].any()
    for found, expected in zip(read(cells, 3, 0, PAGE), values, strict=True):
        assert np.array_equal(found[:, 12:25], expected[:, 2:15])
        assert not found[:, :12].any() and not found[:, 25:].any()
