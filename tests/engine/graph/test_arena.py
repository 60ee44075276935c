"""KV on the CPU: memory of free pages goes back to the system, and comes again."""

from __future__ import annotations

import dataclasses
import mmap
import sys

import pytest

from tests.engine.graph.paging import N_SEQ, ROPE, SHAPE, World
from uma_core.engine.graph.arena import Arena
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.shape import Layer
from uma_core.engine.graph.store import PAGE
from uma_core.errors import ErrorCode, UmaError


def test_memory_of_free_pages_goes_back_and_comes_again() -> None:
    world = World(N_SEQ * 5)
    world.write(0, 200)
    world.write(1, 100)
    assert world.pages.trim() == 0
    world.cut(0, 0)
    assert world.pages.trim() == 4 * world.pages.store.page_bytes
    assert world.pages.trim() == 0
    world.write(2, 300)
    world.check()
    world.pages.close()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_returned_memory_is_really_returned() -> None:
    pages = Pages(
        Arena(dataclasses.replace(SHAPE, layers=tuple(Layer(8, 8, 32, 32, ROPE, i) for i in range(16))), "f16", 64),
        (64, 1, 64 * PAGE),
    )
    pages.reserve(0, 0, 64 * PAGE)
    before = resident_bytes()
    pages.touch(0)
    held = resident_bytes()
    pages.truncate(0, 0)
    pages.trim()
    assert held - before > 0.9 * pages.store.n_bytes
    assert held - resident_bytes() > 0.9 * pages.store.n_bytes
    pages.close()


@pytest.mark.parametrize("n_pages", [1 << 40, 1 << 60])
def test_more_memory_than_there_is_is_a_coded_error(n_pages: int) -> None:
    with pytest.raises(UmaError) as caught:
        Arena(SHAPE, "f16", n_pages)
    assert caught.value.error is ErrorCode.INSUFFICIENT_MEMORY
