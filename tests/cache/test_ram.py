"""The byte budget of the RAM tier: which entries are removed first, and which never are."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.cache.radix import Tree
from uma_core.cache.ram import RamTier
from uma_core.cache.resident import Resident
from uma_core.cache.segment import Segment, path_segments

BYTES = 10  # per token


class Bench:
    """Segments of prefixes that no sequence holds."""

    def __init__(self, budget: int) -> None:
        self.evicted: list[Segment] = []
        self.ram = RamTier(budget, self.evicted.append)
        self.trees: dict[int, Tree] = {}

    def put(self, tokens: list[int], weight: float = 1.0, tenant: int = 1) -> list[Segment]:
        """Save a prefix node by node, as far as it fits. Nodes that are already there stay."""
        tree = self.trees.setdefault(tenant, Tree(tenant))
        resident = Resident(0)
        resident.hold(tree, np.array(tokens, np.int32))
        made: list[Segment] = []
        end = resident.end
        assert end is not None
        end.keep()
        for node in list(end.up())[::-1]:
            if node.seg is None:
                n_bytes = len(node.tokens) * BYTES
                if not self.ram.make_room(n_bytes):
                    break
                self.ram.reserve(tenant, n_bytes)
                seg = Segment(tree, node.start, node.end, n_bytes)
                seg.attach(node)
                seg.weight = weight
                self.ram.put(seg, bytes(n_bytes))
                made.append(seg)
        resident.cut(0)
        self.ram.touch(path_segments(end))
        tree.unkeep(end)
        return made

    def has(self, tokens: list[int], tenant: int = 1) -> int:
        path, n = self.trees[tenant].walk(np.array(tokens, np.int32), len(tokens))
        for node in path:
            if node.seg is None or node.seg.blob is None:
                return node.start
        return n


def test_least_recently_used_goes_first() -> None:
    bench = Bench(90)
    bench.put([1, 1, 1])
    bench.put([2, 2, 2])
    bench.put([3, 3, 3])
    bench.ram.touch(path_segments(bench.trees[1].walk(np.array([1], np.int32), 1)[0][-1]))
    bench.put([4, 4, 4])
    assert [bench.has([i] * 3) for i in (1, 2, 3, 4)] == [3, 0, 3, 3]


def test_what_is_dear_to_recompute_stays_longer() -> None:
    bench = Bench(60)
    bench.put([1, 1, 1], weight=5.0)
    bench.put([2, 2, 2], weight=1.0)
    bench.put([3, 3, 3], weight=1.0)
    assert [bench.has([i] * 3) for i in (1, 2, 3)] == [3, 0, 3]
    for i in range(4, 10):  # its protection does not last for ever
        bench.put([i] * 3, weight=1.0)
    assert bench.has([1] * 3) == 0


def test_what_others_build_upon_goes_after_them() -> None:
    bench = Bench(80)
    bench.put([1, 1, 1])
    bench.put([1, 1, 1, 2, 2])
    bench.put([1, 1, 1, 3, 3])
    bench.put([9] * 3)
    assert bench.has([1, 1, 1]) == 3
    assert bench.has([1, 1, 1, 2, 2]) + bench.has([1, 1, 1, 3, 3]) == 8


def test_only_as_much_as_is_asked_for_goes_back() -> None:
    bench = Bench(100)
    for i in (1, 2, 3):
        bench.put([i] * 3)
    assert bench.ram.shrink(31) == 60 and [bench.has([i] * 3) for i in (1, 2, 3)] == [0, 0, 3]
    assert bench.ram.shrink(1000) == 30 and bench.ram.n_bytes == 0
    bench.put([4] * 10)
    assert bench.has([4] * 10) == 10, "the budget is what it was"


def test_a_part_of_what_is_saved_is_saved_too() -> None:
    bench = Bench(200)
    bench.put([1] * 6)
    bench.put([1, 1, 1, 2, 2, 2])
    assert bench.has([1, 1, 1]) == 3 and bench.has([1] * 6) == 6 and bench.has([1, 1, 1, 2, 2, 2]) == 6
    assert bench.ram.n_bytes == 9 * BYTES, "what both begin with is there once"


def test_what_a_sequence_still_holds_goes_first() -> None:
    bench = Bench(60)
    bench.put([2, 2, 2])
    bench.put([1, 1, 1])
    resident = Resident(1)
    resident.hold(bench.trees[1], np.array([1, 1, 1], np.int32))
    bench.ram.touch(path_segments(resident.end))
    bench.put([3, 3, 3])
    assert [bench.has([i] * 3) for i in (2, 1, 3)] == [3, 0, 3]


def test_kept_bytes_are_never_dropped() -> None:
    bench = Bench(60)
    bench.put([1, 1, 1])
    end = bench.trees[1].walk(np.array([1], np.int32), 1)[0][-1]
    end.keep()
    bench.put([2, 2, 2])
    bench.put([3, 3, 3])
    assert [bench.has([i] * 3) for i in (1, 2, 3)] == [3, 0, 3]
    assert not bench.ram.make_room(40)
    bench.trees[1].unkeep(end)
    assert bench.ram.make_room(60)


def test_the_tenant_that_holds_most_gives_first() -> None:
    bench = Bench(100)
    bench.put([1, 1, 1], tenant=7)
    for i in range(2, 9):
        bench.put([i] * 3, tenant=8)
    assert bench.has([1, 1, 1], tenant=7) == 3
    assert bench.ram.by_tenant[7] == 30 and sum(bench.ram.by_tenant.values()) == bench.ram.n_bytes <= 100


def test_too_large_is_refused_and_drops_nothing() -> None:
    bench = Bench(60)
    bench.put([1, 1, 1])
    assert not bench.ram.make_room(61)
    assert not bench.evicted


def test_nothing_remains_of_a_tenant_whose_last_bytes_went() -> None:
    """Every request with `cache_prompt: false` is a separate tenant."""
    bench = Bench(100)
    (seg,) = bench.put([1, 2, 3], tenant=-11)
    tree = weakref.ref(bench.trees.pop(-11))
    bench.ram.drop(seg)
    del seg
    gc.collect()
    assert tree() is None


@pytest.mark.parametrize("budget", [0, 30, 200])
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=3), st.floats(0.1, 9.0), st.integers(1, 2)),
        max_size=30,
    )
)
def test_the_budget_holds_and_the_books_balance(budget: int, puts: list[tuple[list[int], float, int]]) -> None:
    bench = Bench(budget)
    for tokens, weight, tenant in puts:
        if len(tokens) * BYTES <= budget:
            bench.put(tokens, weight, tenant)
        segs = {id(n.seg): n.seg for tree in bench.trees.values() for n in tree.nodes() if n.seg is not None}
        assert bench.ram.n_bytes == sum(seg.n_bytes for seg in segs.values() if seg.blob is not None) <= budget
        assert bench.ram.n_segments == len(segs)
        for seg in segs.values():
            above = seg.nodes[0].parent
            assert above is None or above.parent is None or above.seg is not None
    assert bench.ram.make_room(budget) and bench.ram.n_bytes == 0
    assert not bench.ram.by_tenant
    assert not any(tree.root.children for tree in bench.trees.values())
