"""The tokens that sequences have in common."""

from __future__ import annotations

import numpy as np

from uma_core.cache.holding import Holding, n_shared
from uma_core.cache.radix import Tree


def tokens(*runs: tuple[int, int]) -> np.ndarray:
    """Return runs of (first token, length)."""
    return np.concatenate([np.arange(first, first + n, dtype=np.int32) for first, n in runs])


def test_common_beginnings_are_counted_once() -> None:
    tree, holdings = Tree(1), [Holding(i) for i in range(4)]
    assert n_shared(holdings) == 0
    holdings[0].hold(tree, tokens((0, 300), (1000, 200)))
    assert n_shared(holdings) == 0, "one alone shares nothing"
    holdings[1].hold(tree, tokens((0, 300), (2000, 100)))
    assert n_shared(holdings) == 300
    holdings[2].hold(tree, tokens((0, 300), (2000, 100)))
    assert n_shared(holdings) == 400, "three hold 300, two of them 100 more"
    holdings[1].cut(0)
    assert n_shared(holdings) == 300
    holdings[2].cut(100)
    assert n_shared(holdings) == 100


def test_tenants_share_nothing() -> None:
    first, second = Holding(0), Holding(1)
    first.hold(Tree(1), tokens((0, 300)))
    second.hold(Tree(2), tokens((0, 300)))
    assert n_shared([first, second]) == 0


def test_other_tokens_replace_those_that_were_held() -> None:
    tree, holding = Tree(1), Holding(0)
    holding.hold(tree, tokens((0, 300), (1000, 200)))
    holding.hold(tree, tokens((0, 100), (2000, 50)))
    assert tree.walk(tokens((0, 300), (1000, 200)), 500)[1] == 100, "the rest is not found any more"
    assert tree.walk(tokens((0, 100), (2000, 50)), 150)[1] == 150
    holding.hold(tree, tokens((0, 80)))
    assert [(node.start, node.end) for node in tree.nodes()] == [(0, 80)] and holding.n == 80
    holding.cut(0)
    assert not list(tree.nodes())
