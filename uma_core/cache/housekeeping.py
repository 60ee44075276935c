"""What the cache does when nothing else is to be done: residents that nobody used for long leave, and the end of the
daemon.
"""

from __future__ import annotations

from uma_core.cache.chain import Chain, Legs
from uma_core.cache.holding import Holding
from uma_core.cache.manager import PrefixCache

AGAIN_NS = 1_000_000_000  # until what could not leave is looked at again: looking at once would take a core
SLICE_NS = 2_000_000  # of work between two looks at the commands
NS_PER_S = 1_000_000_000


class Housekeeper:
    """Runs on the compute thread, between ticks that did nothing."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._job: Chain | None = None
        cache.on_begin = self.stop

    def stop(self) -> None:
        """A sequence is wanted: whatever is half saved is given up."""
        if self._job is not None:
            self._job.close()
            self._job = None

    def idle(self) -> float | None:
        """Do a slice of work. Returns the seconds until there may be more; None: not before a request came."""
        cache, now = self._cache, self._cache.clock.now_ns()
        cache.settle(now + SLICE_NS)
        if cache.is_settling:
            return 0.0
        cache.store.poll(False)
        cache.measure()
        if self._job is None:
            ages = self._ages(now)
            if not ages or ages[0][0] > 0:
                return ages[0][0] / NS_PER_S if ages else None
            self._job = Chain(self._leave(ages[0][1]), cache.clock)
        if self._job.is_done or self._job.step(now + SLICE_NS):
            self._job = None
        return 0.0

    def _ages(self, now: int) -> list[tuple[int, Holding]]:
        """(ns until it may leave, sequence) of idle ones, the next one first."""
        cache = self._cache
        if not (
            cache.settings.is_on and cache.finder.can_move and (cache.store.ram.budget or cache.store.disk is not None)
        ):
            return []
        idle = [h for h in cache.holdings if h.n and not h.owner and not h.is_claimed and not h.readers]
        return sorted(
            ((h.t_used + cache.settings.park_idle_ns - now, h) for h in idle),
            key=lambda pair: (pair[0], pair[1].seq_id),
        )

    def _leave(self, holding: Holding) -> Legs:
        """To RAM or disk, if it can be without driving others out; the sequence is empty afterwards."""
        cache = self._cache
        end = holding.end
        n_bytes = sum(len(node.tokens) for node in cache.store.unsaved(end)) * cache.finder.cell_bytes
        if cache.store.can_keep(n_bytes):
            yield from cache.save(holding, 0)
        if not cache.store.lost(end) and cache.drop_idle(holding):
            return
        # not now: looked at again after as long, or after a while where idle ones may leave at once
        holding.t_used = cache.clock.now_ns() + max(0, AGAIN_NS - cache.settings.park_idle_ns)

    def close(self, timeout_s: float) -> None:
        """The daemon ends: what idle sequences hold goes to disk, where there is one and as far as the time allows."""
        self.stop()
        cache = self._cache
        deadline = cache.clock.now_ns() + int(timeout_s * NS_PER_S)
        cache.settle(deadline)
        if cache.store.disk is None:
            return
        self._flush()  # first: room in RAM may be made for what comes next
        for holding in cache.holdings:
            if holding.n and not holding.owner and not holding.is_claimed:
                chain = Chain(cache.save(holding, 0, True), cache.clock)
                chain.step(deadline)
                chain.close()
        self._flush()
        cache.store.close(max(0.0, (deadline - cache.clock.now_ns()) / NS_PER_S))

    def _flush(self) -> None:
        nodes = [node for tree in self._cache.trees.values() for node in tree.nodes()]
        self._cache.store.flush(list({id(node.seg): node.seg for node in nodes if node.seg is not None}.values()))
