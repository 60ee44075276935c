"""The bytes of a run of positions off the device: in RAM, in a file, or both. The nodes that it was split into share
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from uma_core.cache.radix import Node, Tree


class Segment:
    """KV of positions start..end of the prefixes that run through `nodes`."""

    __slots__ = (
        "blob",
        "end",
        "file",
        "has_state",
        "is_writing",
        "n_bytes",
        "nodes",
        "rank",
        "start",
        "tree",
        "weight",
    )

    def __init__(self, tree: Tree, start: int, end: int, n_bytes: int) -> None:
        self.tree = tree
        self.start, self.end = start, end
        self.n_bytes = n_bytes
        self.has_state = False  # the state of recurrent layers after the last position
        self.blob: bytes | bytearray | memoryview | None = None
        self.file = ""  # name in the cache directory; "": no file
        self.is_writing = False
        self.rank = (0.0, 0)  # order among the segments in RAM
        self.weight = 0.0  # ns per byte to recompute it
        self.nodes: list[Node] = []

    def attach(self, end: Node) -> bool:
        """Attach to the nodes on the path to `end` that have no bytes yet. False: there are none."""
        for node in end.up():
            if node.end > self.start and node.start < self.start:
                self.tree.split(node, self.start)
            if node.start < self.start:
                break
            if node.seg is None:
                self.share(node)
        self.tree.version += 1
        return bool(self.nodes)

    def share(self, node: Node) -> None:
        """Attach to `node`, a part of the positions."""
        node.seg = self
        self.nodes.append(node)

    def below(self) -> Iterator[Segment]:
        """Yield the nearest segments that are useless without this one."""
        for node in self.nodes:
            for child in node.children.values():
                if child.seg is not None and child.seg is not self:
                    yield child.seg

    @property
    def can_leave_ram(self) -> bool:
        if any(node.n_kept for node in self.nodes):
            return False
        return bool(self.file) or not any(self.below())

    @property
    def can_leave_disk(self) -> bool:
        return not any(self.below()) and not (self.blob is None and any(node.n_kept for node in self.nodes))

    def is_only_on_disk_for(self, node: Node) -> bool:
        """Whether its bytes are only on disk and cover exactly this node, so that they may be put into RAM again."""
        return self.blob is None and not self.is_writing and (self.start, self.end) == (node.start, node.end)

    @property
    def is_resident(self) -> bool:
        """Whether sequences hold all of it, so that losing it costs nothing for now."""
        return all(node.holders for node in self.nodes)

    @property
    def last(self) -> Node:
        return max(self.nodes, key=lambda node: node.end)

    def let_go(self) -> None:
        """Detach the segment if it has no bytes left."""
        if self.blob is None and not self.file and not self.is_writing:
            for node in self.nodes:
                node.seg = None
                self.tree.prune(node)
            self.nodes.clear()
            self.tree.version += 1


def has_beginning(seg: Segment) -> bool:
    """Whether everything before it is held or has bytes."""
    first = min(seg.nodes, key=lambda node: node.start)
    return all(node.seg is not None or node.holders for node in first.up())


def segments_of(nodes: Iterable[Node]) -> list[Segment]:
    """Return the segments of these nodes, each once."""
    return list(dict.fromkeys(node.seg for node in nodes if node.seg is not None))


def path_segments(end: Node | None) -> list[Segment]:
    """Return the segments on the path to the node, deepest first."""
    found: list[Segment] = []
    for node in end.up() if end is not None else ():
        if node.seg is not None and (not found or found[-1] is not node.seg):
            found.append(node.seg)
    return found
