"""Protects a prefix while it is being saved. A clear, and the end of the only session that may use it, end that: what
nobody else needs is not kept then.
"""

from __future__ import annotations

from uma_core.cache.radix import Node, Tree


class Saving:
    """See the module docstring."""

    def __init__(self, tree: Tree, end: Node) -> None:
        self.tree = tree
        self._end = end
        self._is_on = True
        end.keep()

    def wants(self, node: Node) -> bool:
        """Whether a snapshot of this node is still of use."""
        return self._is_on or node.n_kept > 0

    def stop(self) -> None:
        if self._is_on:
            self._is_on = False
            self.tree.unkeep(self._end)
