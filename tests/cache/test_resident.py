"""The tokens that sequences have in common."""

from __future__ import annotations

import numpy as np

from uma_core.cache.radix import Tree
from uma_core.cache.resident import Resident, n_shared


def tokens(*runs: tuple[int, int]) -> np.ndarray:
    """Return runs of (first token, length)."""
    return np.concatenate([np.arange(first, first + n, dtype=np.int32) for first, n in runs])


def test_common_beginnings_are_counted_once() -> None:
    tree, residents = Tree(1), [Resident(i) for i in range(4)]
    assert n_shared(residents) == 0
    residents[0].hold(tree, tokens((0, 300), (1000, 200)))
    assert n_shared(residents) == 0, "one alone shares nothing"
    residents[1].hold(tree, tokens((0, 300), (2000, 100)))
    assert n_shared(residents) == 300
    residents[2].hold(tree, tokens((0, 300), (2000, 100)))
    assert n_shared(residents) == 400, "three hold 300, two of them 100 more"
    residents[1].cut(0)
    assert n_shared(residents) == 300
    residents[2].cut(100)
    assert n_shared(residents) == 100


def test_tenants_share_nothing() -> None:
    first, second = Resident(0), Resident(1)
    first.hold(Tree(1), tokens((0, 300)))
    second.hold(Tree(2), tokens((0, 300)))
    assert n_shared([first, second]) == 0


def test_other_tokens_replace_those_that_were_held() -> None:
    tree, resident = Tree(1), Resident(0)
    resident.hold(tree, tokens((0, 300), (1000, 200)))
    resident.hold(tree, tokens((0, 100), (2000, 50)))
    assert tree.walk(tokens((0, 300), (1000, 200)), 500)[1] == 100, "the rest is not found any more"
    assert tree.walk(tokens((0, 100), (2000, 50)), 150)[1] == 150
    resident.hold(tree, tokens((0, 80)))
    assert [(node.start, node.end) for node in tree.nodes()] == [(0, 80)] and resident.n == 80
    resident.cut(0)
    assert not list(tree.nodes())
