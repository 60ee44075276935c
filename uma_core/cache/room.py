"""Makes room in one pool of cells: empties idle sequences until the cells that only they hold fit beside all cells that
running sequences may need. What only an idle sequence holds is saved first.
"""

from __future__ import annotations

import numpy as np

from uma_core.cache.finder import RESIDENT
from uma_core.cache.manager import PrefixCache
from uma_core.cache.resident import Resident
from uma_core.engine.api import NO_PAGES, Engine


def make_cells(cache: PrefixCache, n_free: int, running: np.ndarray = NO_PAGES) -> None:
    """Empty idle sequences until they hold at most `n_free` cells besides the pages `running`. The oldest one that
    frees cells goes first; those that a transfer is about to copy from go last.
    """
    unused = [h for h in cache.residents if h.n and h.is_idle]
    running = np.union1d(running, _claimed_pages(cache.engine, unused))
    idle = [h for h in unused if not h.is_awaited]
    idle.sort(key=lambda h: (bool(h.readers), h.t_used))
    n_held = n_cells(cache.engine, idle, running)
    while idle and n_held > n_free:
        for victim in idle:
            n_left = n_cells(cache.engine, [h for h in idle if h is not victim], running)
            if n_left < n_held:
                break
        else:  # each shares all its cells with another idle sequence
            victim, n_left = idle[0], n_held
        idle.remove(victim)
        n_held = n_left
        cache.meters.evictions[RESIDENT].add()
        cache.leave(victim)


def _claimed_pages(engine: Engine, residents: list[Resident]) -> np.ndarray:
    """Return whole pages that transfers are about to share with running sequences, and which already count as
    theirs.
    """
    size = engine.info.kv_page
    if size == 1:
        return NO_PAGES
    spans = [(resident.seq_id, *reader.span) for resident in residents for reader in resident.readers]
    pages = [engine.kv_pages(seq_id, end // size * size)[-(-start // size) :] for seq_id, start, end in spans]
    return np.concatenate(pages) if pages else NO_PAGES


def n_cells(engine: Engine, idle: list[Resident], running: np.ndarray) -> int:
    """Return the number of cells that these sequences hold and no running one does, each counted once."""
    if engine.info.kv_page == 1 or not idle:
        return sum(resident.n for resident in idle)
    pages = np.concatenate([engine.kv_pages(resident.seq_id, resident.n) for resident in idle])
    return engine.info.kv_page * len(np.setdiff1d(pages, running))
