"""The cache's work in idle time, which saves and empties sequences that have long been unused, and its work at
shutdown.
"""

from __future__ import annotations

from uma_core.cache.chain import Chain, Steps
from uma_core.cache.manager import PrefixCache
from uma_core.cache.resident import Resident
from uma_core.cache.segment import segments_of

AGAIN_NS = 1_000_000_000  # before retrying sequences that could not leave: retrying at once would keep a core busy
SLICE_NS = 2_000_000  # length of a slice, after which commands are checked
NS_PER_S = 1_000_000_000
LOOK_SHARE = 0.25  # of the time at shutdown: a slow disk must leave time to save the sequences


class Housekeeper:
    """Runs on the compute thread, between ticks that did nothing."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._job: Chain | None = None

    def stop(self) -> None:
        """Abandon unfinished saving, because a sequence is needed or must be emptied."""
        if self._job is not None:
            self._job.close()
            self._job = None

    def idle(self) -> float | None:
        """Do a slice of work. Returns the seconds until there may be more; None: none before the next request."""
        cache, now = self._cache, self._cache.clock.now_ns()
        cache.step(now + SLICE_NS)
        if cache.has_steps:
            return 0.0
        cache.store.poll(False)
        cache.store.ram.make_room(0)  # a budget that became smaller while sessions kept the bytes
        cache.measure()
        if self._job is None:
            ages = self._ages(now)
            if not ages or ages[0][0] > 0:
                return ages[0][0] / NS_PER_S if ages else None
            self._job = Chain(self._leave(ages[0][1]), cache.clock)
        if self._job.is_done or self._job.step(now + SLICE_NS):
            self._job = None
        return 0.0

    def _ages(self, now: int) -> list[tuple[int, Resident]]:
        """Return (ns until it may leave, sequence) for the idle sequences, the next one first."""
        cache = self._cache
        if not (
            cache.settings.is_on and cache.finder.can_move and (cache.store.ram.budget or cache.store.disk is not None)
        ):
            return []
        idle = [h for h in cache.residents if h.n and h.is_idle and not h.readers]
        return sorted(
            ((h.t_used + cache.settings.park_idle_ns - now, h) for h in idle),
            key=lambda pair: (pair[0], pair[1].seq_id),
        )

    def _leave(self, resident: Resident) -> Steps:
        """Save a sequence to RAM or disk and empty it, if that evicts nothing else."""
        cache = self._cache
        end = resident.end
        n_bytes = sum(cache.store.size(resident.seq_id, node) for node in cache.store.unsaved(end))
        if cache.store.can_keep(n_bytes):
            yield from cache.save(resident, 0)
        if not cache.store.lost(end) and cache.drop_idle(resident):
            return
        # not now: retry after the same time, but not before AGAIN_NS
        resident.t_used = cache.clock.now_ns() + max(0, AGAIN_NS - cache.settings.park_idle_ns)

    def close(self, timeout_s: float) -> None:
        """Write the idle sequences to disk when the daemon ends, if there is a disk tier and as far as time allows."""
        self.stop()
        cache = self._cache
        deadline = cache.clock.now_ns() + int(timeout_s * NS_PER_S)
        cache.step(deadline)
        if cache.store.disk is None:
            return
        cache.store.look_again(max(0.0, (deadline - cache.clock.now_ns()) / NS_PER_S) * LOOK_SHARE)
        self._flush()  # first, because the next step may need the RAM that this frees
        for resident in cache.residents:
            if resident.n and resident.is_idle:
                chain = Chain(cache.save(resident, 0, True), cache.clock)
                chain.step(deadline)
                chain.close()
        self._flush()
        cache.store.close(max(0.0, (deadline - cache.clock.now_ns()) / NS_PER_S))

    def _flush(self) -> None:
        nodes = (node for tree in self._cache.trees.values() for node in tree.nodes())
        self._cache.store.flush(segments_of(nodes))
