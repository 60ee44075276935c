"""Trees whose nodes have bytes or are held, for tests that need no engine."""

from __future__ import annotations

import numpy as np

from uma_core.cache.radix import Node, Tree
from uma_core.cache.resident import Resident
from uma_core.cache.segment import Segment


def tokens(*runs: tuple[int, int]) -> np.ndarray:
    """Return `n` tokens of each kind, one run after another."""
    return np.concatenate([np.arange(n, dtype=np.int32) + 1000 * kind for kind, n in runs])


def held(tree: Tree, seq_id: int, content: np.ndarray, cuts: tuple[int, ...] = ()) -> Resident:
    resident = Resident(seq_id)
    resident.hold(tree, content, cuts)
    return resident


def saved(tree: Tree, end: Node, start: int = 0, file: str = "") -> Segment:
    """Attach bytes to the path to `end`, from `start` on; in a file alone if it is named."""
    seg = Segment(tree, start, end.end, 10 * (end.end - start))
    if file:
        seg.file = file
    else:
        seg.blob = bytes(seg.n_bytes)
    assert seg.attach(end)
    return seg
