"""Pages, compared with a plain model of what each sequence holds: random writes, sharing, truncation."""

from __future__ import annotations

import dataclasses
import mmap
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.config.options import EngineOptions
from uma_core.engine.graph.arena import Arena
from uma_core.engine.graph.cells import Cells
from uma_core.engine.graph.device import device_of
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.shape import Layer, Rope, Scaling, Shape
from uma_core.engine.graph.store import PAGE

N_SEQ, N_CTX_SEQ = 3, 300
ROPE = Rope(32, 1e4, 1.0)
# the second layer has more and longer heads, and its K and V differ; the third layer reads the first one's pages
LAYERS = (Layer(2, 1, 32, 32, ROPE, 0), Layer(2, 2, 96, 64, ROPE, 1), Layer(2, 1, 32, 32, ROPE, 0))
SHAPE = Shape("llama", LAYERS, 32, 64, 512, 1e-6, Scaling(512), 0, 0, 0.0, 1.0)
PARTS = [(2, 1, 1, 64), (1, 1, 2, 192), (1, 1, 2, 128)]  # K and V alike, positions, KV heads, bytes of a head
SEQ = st.integers(0, N_SEQ - 1)
WRITE = st.tuples(st.just("write"), SEQ, st.integers(1, 130))
CUT = st.tuples(st.just("cut"), SEQ, st.integers(0, N_CTX_SEQ))
SHARE = st.tuples(st.just("share"), SEQ, SEQ)


class World:
    """Each position of a sequence holds a number that is written nowhere else."""

    def __init__(self, n_pages: int, is_stock: bool = False) -> None:
        store = (
            Cells(SHAPE, "f16", n_pages, device_of(EngineOptions(n_gpu_layers=0), is_stock=True), False)
            if is_stock
            else Arena(SHAPE, "f16", n_pages)
        )
        self.pages = Pages(store, (n_pages, N_SEQ, N_CTX_SEQ))
        self.content: list[list[int]] = [[] for _ in range(N_SEQ)]
        self.n_written = 0

    def write(self, seq: int, n: int) -> None:
        held = self.content[seq]
        if not self.pages.has_room([(seq, len(held), n)]):
            return
        self.pages.reserve(seq, len(held), n)
        for _ in range(n):
            self.n_written += 1
            cells = [np.zeros(part, np.uint8) for part in PARTS]
            for part in cells:
                part[:, 0, :, -4:] = np.frombuffer(self.n_written.to_bytes(4, "little"), np.uint8)
            self.pages.store.write(*self._place(seq, len(held)), cells)
            held.append(self.n_written)

    def _place(self, seq: int, pos: int) -> tuple[int, int, int]:
        return int(self.pages.table[seq, pos // PAGE]), pos % PAGE, pos % PAGE + 1

    def _read(self, seq: int, pos: int) -> int:
        """Return the number at a position. It is the same in K and V of every layer."""
        cells = [np.empty(part, np.uint8) for part in PARTS]
        self.pages.store.read(*self._place(seq, pos), cells)
        (number,) = {head[-4:].tobytes() for part in cells for cell in part for head in cell[0]}
        return int.from_bytes(number, "little")

    def cut(self, seq: int, n: int) -> None:
        if n < len(self.content[seq]):
            self.pages.truncate(seq, n)
            del self.content[seq][n:]

    def share(self, src: int, dst: int) -> None:
        if src != dst:
            self.cut(dst, 0)
            self.pages.share(src, dst, 0, len(self.content[src]))
            self.content[dst] = list(self.content[src])

    def check(self) -> None:
        for seq, held in enumerate(self.content):
            assert [self._read(seq, p) for p in range(len(held))] == held
        listed = [int(p) for seq in range(N_SEQ) for p in self.pages.table[seq, : self.pages.n_pages(seq)]]
        assert [listed.count(p) for p in range(len(self.pages.n_refs))] == self.pages.n_refs.tolist()
        assert self.pages.n_free == self.pages.n_refs.tolist().count(0)


@given(st.lists(st.one_of(WRITE, CUT, SHARE), max_size=40), st.sampled_from([4, N_SEQ * 5]), st.booleans())
def test_nobody_sees_what_others_write(operations: list[tuple[str, int, int]], n_pages: int, is_stock: bool) -> None:
    world = World(n_pages, is_stock)
    for name, seq, arg in operations:
        getattr(world, name)(seq, arg)
        world.check()
    world.pages.close()


@given(st.lists(st.one_of(WRITE, CUT, SHARE), max_size=40))
def test_enough_pages_for_all_at_their_longest_are_always_enough(operations: list[tuple[str, int, int]]) -> None:
    world = World(N_SEQ * 5)
    for name, seq, arg in operations:
        if name == "write":
            arg = min(arg, N_CTX_SEQ - len(world.content[seq]))
            assert arg <= 0 or world.pages.has_room([(seq, len(world.content[seq]), arg)])
        if arg > 0 or name != "write":
            getattr(world, name)(seq, arg)
    world.pages.close()


@pytest.mark.parametrize(("n_pages", "has_room"), [(2, False), (3, True)])
def test_the_last_who_writes_into_a_shared_page_needs_no_copy(n_pages: int, has_room: bool) -> None:
    """Before, a call with answers to one prompt was refused although the last page was free."""
    world = World(n_pages)
    world.write(0, 60)
    for seq in range(1, N_SEQ):
        world.share(0, seq)
    assert world.pages.has_room([(seq, 60, 1) for seq in range(N_SEQ)]) == has_room
    if has_room:
        for seq in range(N_SEQ):
            world.write(seq, 1)
            world.check()
        assert not world.pages.n_free
    world.pages.close()


def test_pages_in_use_lie_together() -> None:
    world = World(N_SEQ * 5)
    for seq in range(N_SEQ):
        world.write(seq, 130)
    world.cut(0, 64)
    world.cut(1, 0)
    world.write(2, 100)
    assert max(world.pages.table[2, :4]) < 9, "what came free first is taken first"
    world.pages.close()


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


@pytest.mark.parametrize("n", [1, 63, 64, 65, 300])
def test_a_shared_page_is_copied_by_whoever_writes_into_it_first(n: int, is_stock: bool) -> None:
    world = World(N_SEQ * 5, is_stock)
    world.write(0, n)
    before = world.pages.n_free
    world.share(0, 1)
    assert world.pages.n_free == before
    if n < N_CTX_SEQ:
        world.write(1, 1)
        world.write(0, 1)
        assert before - world.pages.n_free == (1 if n % PAGE else 2)
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
