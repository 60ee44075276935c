"""Which idle sequences make room: the oldest first, but none whose end frees nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from uma_core.cache.holding import Holding
from uma_core.cache.room import make_cells
from uma_core.engine.api import NO_PAGES

PAGE = 10


def emptied(
    pages: dict[int, list[int]], n_free: int, running: Any = NO_PAGES, size: int = PAGE, busy: tuple[int, ...] = ()
) -> list[int]:
    """The sequences that go, in order; older ones have lower numbers."""
    holdings, gone = [], []
    for seq_id, own in pages.items():
        holding = Holding(seq_id)
        holding.n, holding.t_used, holding.owner = len(own) * PAGE, seq_id, int(seq_id in busy)
        holdings.append(holding)
    engine = SimpleNamespace(
        info=SimpleNamespace(kv_page=size), kv_pages=lambda seq, n: np.array(pages[seq][: -(-n // PAGE)], np.int32)
    )
    counter = SimpleNamespace(add=lambda: None)
    meters = SimpleNamespace(evictions={"resident": counter})

    def empty(holding: Holding) -> None:
        gone.append(holding.seq_id)
        holding.n = 0

    make_cells(SimpleNamespace(holdings=holdings, engine=engine, meters=meters, empty=empty), n_free, running)  # type: ignore[arg-type]
    return gone


APART = {0: [1, 2], 1: [3], 2: [4, 5]}


@pytest.mark.parametrize("size", [1, PAGE])
@pytest.mark.parametrize(
    ("n_free", "expected"), [(50, []), (49, [0]), (30, [0]), (29, [0, 1]), (0, [0, 1, 2]), (-20, [0, 1, 2])]
)
def test_the_oldest_go_until_the_rest_fits(size: int, n_free: int, expected: list[int]) -> None:
    assert emptied(APART, n_free, size=size) == expected


def test_what_running_sequences_hold_too_takes_no_room() -> None:
    assert emptied({0: [1, 2, 3], 1: [4]}, 20, running=np.array([1, 2])) == []
    assert emptied({0: [1, 2], 1: [4]}, 0, running=np.array([1, 2])) == [1]


def test_pages_of_several_idle_ones_count_once() -> None:
    assert emptied({0: [1, 2], 1: [1, 2, 3], 2: [7]}, 40) == []
    assert emptied({0: [1, 2], 1: [1, 2, 3], 2: [7]}, 30) == [1]


def test_twins_that_only_free_something_together() -> None:
    assert emptied({0: [1, 2], 1: [1, 2]}, 0) == [0, 1]


def test_running_sequences_stay() -> None:
    assert emptied(APART, 0, busy=(0, 2)) == [1]
