"""A radix tree over token ids: records which prefixes are held, and by what.

Rules: pure; knows no engine, no clock and no bytes. A node's tokens follow its parent's. A holder of a node also holds
all nodes above it. Nodes that nothing needs are removed at once (`prune`), so every node is either held or leads to one
that is held.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from uma_core.cache.segment import Segment

MAX_EDGE = 512  # tokens of a node: snapshots are made, kept and dropped in pieces of at most this size
MIN_EDGE = 64  # no node is made for a boundary that would leave a shorter one

_ids = itertools.count(1)


class Node:
    """Tokens that follow its parent's. `holders`: sequences whose cells hold it; `seg`: its bytes off the device."""

    __slots__ = ("children", "holders", "id", "is_pinned", "n_kept", "parent", "seg", "start", "t_used", "tokens")

    def __init__(self, parent: Node | None, tokens: np.ndarray, start: int) -> None:
        self.id = next(_ids)
        self.parent = parent
        self.tokens = tokens
        self.start = start
        self.children: dict[int, Node] = {}
        self.holders: set[int] = set()
        self.seg: Segment | None = None
        self.n_kept = 0  # number of reasons to protect the bytes of the prefix that runs through this node
        self.is_pinned = False  # the operator's reason, set on the last node
        self.t_used = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def is_needed(self) -> bool:
        return bool(self.children or self.holders or self.n_kept) or self.seg is not None

    @property
    def is_built_upon(self) -> bool:
        """Whether a child has bytes off the device."""
        return any(child.seg is not None for child in self.children.values())

    def up(self) -> Iterator[Node]:
        """Yield this node and the nodes above it, without the root."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def keep(self) -> None:
        """Protect the bytes of the whole prefix that ends here; calls are counted."""
        for node in self.up():
            node.n_kept += 1


class Tree:
    """One tenant's prefixes, as computed with one set of adapters. `version` changes whenever a search may give a new
    result.
    """

    def __init__(self, tenant: int, variant: str = "") -> None:
        """`variant` identifies the LoRA adapters, by the content of their files, and their scales; "": none."""
        self.tenant = tenant
        self.variant = variant
        self.root = Node(None, np.zeros(0, np.int32), 0)
        self.version = 1

    def walk(self, tokens: np.ndarray, limit: int) -> tuple[list[Node], int]:
        """Return the nodes along the longest common prefix, and the number of common tokens; the last node may match
        only in part.

        Cost: O(limit), however large the tree is.
        """
        node, path, n = self.root, [], 0
        while n < limit:
            child = node.children.get(int(tokens[n]))
            if child is None:
                break
            k = common(child.tokens, tokens[n:limit])
            path.append(child)
            n += k
            if k < len(child.tokens):
                break
            node = child
        return path, n

    def insert(self, tokens: np.ndarray, cuts: Sequence[int] = (), grower: int = -1) -> Node:
        """Make a path for all of `tokens`, with boundaries at `cuts` in its new part; returns the path's last node.

        A leaf that only sequence `grower` holds is extended instead of getting a child.
        """
        path, n = self.walk(tokens, len(tokens))
        node = path[-1] if path else self.root
        if path and n < node.end:
            node = self.split(node, n)
        if n == len(tokens):
            return node
        self.version += 1
        if node.holders == {grower} and not node.children and node.seg is None and not node.n_kept:
            end = min(len(tokens), node.start + MAX_EDGE)
            if not any(n <= cut < end for cut in cuts):
                node.tokens = tokens[node.start : end].copy()
                n = end
        for end in _ends(n, len(tokens), cuts):
            child = Node(node, tokens[n:end].copy(), n)
            node.children[int(tokens[n])] = child
            node, n = child, end
        return node

    def split(self, node: Node, at: int) -> Node:
        """Split a node at position `at`; returns the upper part. The lower part stays the same object."""
        assert node.parent is not None and node.start < at < node.end
        k = at - node.start
        upper = Node(node.parent, node.tokens[:k], node.start)
        upper.holders = set(node.holders)
        upper.n_kept, upper.t_used = node.n_kept, node.t_used
        if node.seg is not None:
            node.seg.share(upper)
        node.parent.children[int(upper.tokens[0])] = upper
        upper.children[int(node.tokens[k])] = node
        node.parent, node.tokens, node.start = upper, node.tokens[k:], at
        return upper

    def unkeep(self, node: Node) -> None:
        """Undo one `node.keep()`."""
        for each in node.up():
            each.n_kept -= 1
        self.prune(node)

    def prune(self, node: Node) -> None:
        """Remove the node and the nodes above it, as long as nothing needs them."""
        while node.parent is not None and not node.is_needed:
            parent = node.parent
            del parent.children[int(node.tokens[0])]
            node.parent, node = None, parent
            self.version += 1

    def tokens_to(self, node: Node) -> np.ndarray:
        """Return (node.end,) int32: the whole prefix that ends with the node."""
        parts = [n.tokens for n in node.up()]
        return np.concatenate(parts[::-1]) if parts else self.root.tokens

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def common(a: np.ndarray, b: np.ndarray) -> int:
    """Return the length of the longest common prefix."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def _ends(start: int, end: int, cuts: Sequence[int]) -> Iterator[int]:
    """Yield the ends of a new path's nodes: at message ends unless a tiny node would remain, and before a node gets too
    long.
    """
    at = start
    for cut in [*(c for c in cuts if c < end), end]:
        if cut != end and not at + MIN_EDGE <= cut <= end - MIN_EDGE:
            continue
        while cut - at > MAX_EDGE:
            at += MAX_EDGE
            yield at
        if cut > at:
            at = cut
            yield at
