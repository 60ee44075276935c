"""The cells that running sessions share in one paged pool: each session reserves them, but memory holds one copy.

Rules: only whole pages of positions that a session has computed count, because no session writes into them again; the
page that it writes next may have to be copied. A session that may continue past the end of the context will read the
context again, so its whole reservation counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from uma_core.engine.api import NO_PAGES, Engine
from uma_core.session.session import Session


class Residency(NamedTuple):
    """The sharing at one moment, between two calls of the engine."""

    pages: np.ndarray = NO_PAGES  # (distinct pages,) that count
    n_saved: int = 0  # cells that are reserved more than once
    shared: tuple[int, ...] = ()  # by sequence: cells that other running ones hold too; () where there are none


def residency(engine: Engine, sessions: Iterable[Session]) -> Residency:
    """Compute the sharing. Cost: one look at the page table of each running sequence."""
    size = engine.info.kv_page
    if size == 1 or not engine.info.is_unified:  # with streams each sequence has its share, whatever others hold
        return Residency()
    running = (s for s in sessions if s.seq_id >= 0 and not s.is_shifting and s.n_past >= size)
    held = {s.seq_id: engine.kv_pages(s.seq_id, s.n_past // size * size) for s in running}
    if not held:
        return Residency()
    n_holders = np.bincount(np.concatenate(list(held.values())))
    pages = np.flatnonzero(n_holders)
    n_saved = int(n_holders.sum()) - len(pages)
    if not n_saved:
        return Residency(pages)
    shared = [0] * engine.info.n_seq_max
    for seq_id, own in held.items():
        shared[seq_id] = int((n_holders[own] > 1).sum()) * size
    return Residency(pages, n_saved * size, tuple(shared))
