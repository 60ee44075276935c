"""The radix tree, compared with brute force over plain lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from uma_core.cache.radix import MAX_EDGE, Tree, common
from uma_core.cache.resident import Resident

token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def lcp(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def check(tree: Tree, residents: list[Resident], contents: list[list[int]]) -> None:
    """Check that the tree holds exactly what `contents` says."""
    for resident, content in zip(residents, contents, strict=True):
        assert resident.n == len(content)
        if content:
            assert resident.end is not None and tree.tokens_to(resident.end).tolist() == content
    for node in tree.nodes():
        assert node.is_needed
        path = tree.tokens_to(node).tolist()
        assert node.holders == {i for i, content in enumerate(contents) if content[: node.end] == path}


@given(token_lists, token_lists)
def test_common_is_the_longest_common_beginning(a: list[int], b: list[int]) -> None:
    assert common(array(a), array(b)) == lcp(a, b)


@given(st.lists(token_lists, max_size=6), token_lists, st.integers(0, 12))
def test_a_walk_finds_the_longest_common_beginning(held: list[list[int]], wanted: list[int], limit: int) -> None:
    tree = Tree(1)
    for i, content in enumerate(held):
        Resident(i).hold(tree, array(content))
    limit = min(limit, len(wanted))
    path, n = tree.walk(array(wanted), limit)
    assert n == max((lcp(content, wanted[:limit]) for content in held), default=0)
    assert sum(len(node.tokens) for node in path) >= n
    assert [t for node in path for t in node.tokens.tolist()][:n] == wanted[:n]


@settings(max_examples=300)
@given(st.data())
def test_sequences_grow_are_cut_and_are_reused(data: st.DataObject) -> None:
    tree = Tree(1)
    residents = [Resident(i) for i in range(3)]
    contents: list[list[int]] = [[], [], []]
    for _ in range(data.draw(st.integers(1, 12))):
        i = data.draw(st.integers(0, 2))
        if data.draw(st.booleans()):
            contents[i] = contents[i] + data.draw(token_lists)
            cuts = data.draw(st.lists(st.integers(1, len(contents[i])), max_size=3).map(sorted))
            residents[i].hold(tree, array(contents[i]), tuple(cuts))
        else:
            n = data.draw(st.integers(0, len(contents[i])))
            contents[i] = contents[i][:n]
            residents[i].cut(n)
        check(tree, residents, contents)
    for resident in residents:
        resident.cut(0)
    assert not tree.root.children


def test_nodes_end_at_messages_and_stay_short() -> None:
    tree = Tree(1)
    tokens = np.arange(3 * MAX_EDGE, dtype=np.int32)
    resident = Resident(0)
    resident.hold(tree, tokens, (10, 100, 120, 700, len(tokens)))
    ends = [node.end for node in tree.nodes()]
    assert ends == [100, 612, 700, 1212, 1536]
    assert all(len(node.tokens) <= MAX_EDGE for node in tree.nodes())


def test_a_leaf_does_not_grow_while_its_bytes_are_on_their_way() -> None:
    """The bytes are those of the positions that the leaf had when they were requested."""
    tree, resident = Tree(1), Resident(0)
    resident.hold(tree, array([1, 2]))
    kept = resident.end
    assert kept is not None
    kept.keep()
    resident.hold(tree, array([1, 2, 3, 4]))
    assert (kept.start, kept.end) == (0, 2) and resident.end is not kept
    tree.unkeep(kept)
    check(tree, [resident], [[1, 2, 3, 4]])


def test_a_leaf_grows_in_place_for_its_only_holder() -> None:
    tree = Tree(1)
    a, b = Resident(0), Resident(1)
    a.hold(tree, array([1, 2, 3]))
    a.hold(tree, array([1, 2, 3, 4, 5]))
    assert len(list(tree.nodes())) == 1
    b.hold(tree, array([1, 2, 3, 4, 5]))
    a.hold(tree, array([1, 2, 3, 4, 5, 6]))
    assert [node.end for node in tree.nodes()] == [5, 6]


def test_a_kept_beginning_survives_its_holder_and_its_splits() -> None:
    tree = Tree(1)
    a, b = Resident(0), Resident(1)
    a.hold(tree, array([1, 2, 3, 4]))
    end = a.end
    assert end is not None
    end.keep()
    a.cut(0)
    b.hold(tree, array([1, 2, 9]))
    assert tree.walk(array([1, 2, 3, 4]), 4)[1] == 4
    assert all(node.n_kept == 1 for node in end.up())
    b.cut(0)
    tree.unkeep(end)
    assert not tree.root.children


def test_every_change_that_may_matter_changes_the_version() -> None:
    tree = Tree(1)
    a = Resident(0)
    seen = {tree.version}
    a.hold(tree, array([1, 2, 3]))
    seen.add(tree.version)
    a.hold(tree, array([1, 2, 3, 4]))
    seen.add(tree.version)
    a.cut(2)
    seen.add(tree.version)
    assert len(seen) == 4
