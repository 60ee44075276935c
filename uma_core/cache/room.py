"""Room in one pool of cells: idle sequences are emptied until what only they hold fits beside what running ones may
ever need.
"""

from __future__ import annotations

import numpy as np

from uma_core.cache.finder import RESIDENT
from uma_core.cache.holding import Holding
from uma_core.cache.manager import PrefixCache
from uma_core.engine.api import NO_PAGES, Engine


def make_cells(cache: PrefixCache, n_free: int, running: np.ndarray = NO_PAGES) -> None:
    """Idle sequences may hold no more than `n_free` cells beside the pages `running`: the oldest whose end frees
    something go first.
    """
    idle = sorted((h for h in cache.holdings if h.n and not h.owner and not h.is_claimed), key=lambda h: h.t_used)
    n_held = n_cells(cache.engine, idle, running)
    while idle and n_held > n_free:
        for victim in idle:
            n_left = n_cells(cache.engine, [h for h in idle if h is not victim], running)
            if n_left < n_held:
                break
        else:  # each shares all that it holds with another idle one
            victim, n_left = idle[0], n_held
        idle.remove(victim)
        n_held = n_left
        cache.meters.evictions[RESIDENT].add()
        cache.empty(victim)


def n_cells(engine: Engine, idle: list[Holding], running: np.ndarray) -> int:
    """Cells that these hold and no running sequence does, each counted once."""
    if engine.info.kv_page == 1 or not idle:
        return sum(holding.n for holding in idle)
    pages = np.concatenate([engine.kv_pages(holding.seq_id, holding.n) for holding in idle])
    return engine.info.kv_page * len(np.setdiff1d(pages, running))
