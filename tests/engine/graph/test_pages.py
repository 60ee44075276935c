"""Pages, compared with a plain model of what each sequence holds: random writes, sharing, truncation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.graph.paging import N_CTX_SEQ, N_SEQ, World
from uma_core.engine.graph.store import PAGE

SEQ = st.integers(0, N_SEQ - 1)
WRITE = st.tuples(st.just("write"), SEQ, st.integers(1, 130))
CUT = st.tuples(st.just("cut"), SEQ, st.integers(0, N_CTX_SEQ))
SHARE = st.tuples(st.just("share"), SEQ, SEQ)


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
