"""What the cells of each sequence hold: the link between the tree and the engine's sequences.

Rules: bookkeeping only. A sequence's content is in the tree up to `n` tokens; cells beyond that belong to a running
session and are not shared yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from uma_core.cache.radix import Node, Tree


class Reader(Protocol):
    """A transfer that copies from a sequence."""

    @property
    def span(self) -> tuple[int, int]:
        """The first position that it copies, and the end."""

    def lose_source(self) -> None:
        """Continue without the source, whose cells can no longer be trusted."""


class Resident:
    """The resident prefix of one sequence."""

    __slots__ = (
        "end",
        "is_awaited",
        "is_claimed",
        "is_leaving",
        "n",
        "n_claimed",
        "owner",
        "readers",
        "seq_id",
        "t_used",
        "tree",
    )

    def __init__(self, seq_id: int) -> None:
        self.seq_id = seq_id
        self.tree: Tree | None = None
        self.end: Node | None = None
        self.n = 0
        self.owner = 0  # sid of the running session; 0: none
        self.is_claimed = False  # an admitted session waits to take it over
        self.n_claimed = 0  # tokens that this session takes over
        self.is_awaited = False  # idle, and will be emptied once it is saved
        self.is_leaving = False  # idle, and will be emptied once no transfer copies from it
        self.readers: set[Reader] = set()
        self.t_used = 0

    @property
    def is_idle(self) -> bool:
        return not self.owner and not self.is_claimed

    @property
    def n_staying(self) -> int:
        """Tokens that it will hold once what leaves now has left."""
        if self.is_awaited:
            return 0
        return self.n_claimed if self.is_claimed else self.n

    def hold(self, tree: Tree, tokens: np.ndarray, cuts: tuple[int, ...] = ()) -> None:
        """Record that the cells hold exactly these tokens."""
        if self.tree is not tree:
            self.cut(0)
        elif self.n:  # the rest of the old content must no longer be found
            self.cut(self.common_with(*tree.walk(tokens, len(tokens))))
        self.tree, self.n = tree, len(tokens)
        if not self.n:
            return
        end = tree.insert(tokens, cuts, self.seq_id)
        for node in end.up():
            node.holders.add(self.seq_id)
        self.end = end
        tree.version += 1

    def cut(self, n: int) -> None:
        """Record that the cells hold only the first n tokens."""
        if self.tree is None or n >= self.n:
            return
        end = self.end
        while end is not None and end.parent is not None and end.end > n:
            if end.start < n:
                self.tree.split(end, n)
                continue
            end.holders.discard(self.seq_id)
            above = end.parent
            self.tree.prune(end)
            end = above
        self.n = n
        self.end = end if n else None
        self.tree.version += 1
        if not n:
            self.tree = None

    def common_with(self, path: list[Node], n: int) -> int:
        """Return how many tokens of a walk through the tree these cells hold."""
        for node in reversed(path):
            if self.seq_id in node.holders:
                return min(node.end, n)
        return 0


def n_shared(residents: Iterable[Resident]) -> int:
    """Return the number of tokens that several sequences hold, each counted once. Cost: one step per node above the
    ends.
    """
    nodes: set[Node] = set()
    for resident in residents:
        for node in resident.end.up() if resident.end is not None else ():
            if node in nodes:
                break  # this node's parents are counted too
            nodes.add(node)
    return sum(len(node.tokens) for node in nodes if len(node.holders) > 1)
