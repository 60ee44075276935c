"""The RAM tier: snapshots under a byte budget. The least recently used are dropped first, weighted by the cost of
recomputing them.

Rules: pure accounting; the bytes are made and read elsewhere. GreedyDual-Size: a segment's rank is the eviction
clock at its last use, plus its recompute time per byte. Segments that a sequence still holds rank lowest. Segments that
others build upon, that are pinned, or that belong to a parked session are not dropped. The tenant that holds the most
loses segments first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable

from uma_core.cache.segment import Segment

HEAP_SLACK = 64  # stale heap entries to tolerate, in addition to one per segment


class RamTier:
    def __init__(self, budget: int, on_evict: Callable[[Segment], None]) -> None:
        self.budget = budget
        self.n_bytes = 0
        self.n_segments = 0
        self.by_tenant: dict[int, int] = {}
        self._on_evict = on_evict
        self._clock = 0.0
        self._order = itertools.count()
        self._heaps: dict[int, list[tuple[float, int, Segment]]] = {}

    def make_room(self, n_bytes: int) -> bool:
        """Drop segments until this many more bytes fit. False: they cannot fit."""
        if n_bytes > self.budget:
            return False
        while self.n_bytes + n_bytes > self.budget:
            victim = self._victim()
            if victim is None:
                return False
            self.drop(victim)
            self._on_evict(victim)
        return True

    def shrink(self, n_bytes: int) -> int:
        """Drop the least useful segments until this many bytes are dropped, or none are left. Returns the bytes
        dropped.
        """
        before, budget = self.n_bytes, self.budget
        self.budget = max(0, before - n_bytes)
        self.make_room(0)
        self.budget = budget
        return before - self.n_bytes

    def reserve(self, tenant: int, n_bytes: int) -> None:
        """Count bytes that are about to be filled, after `make_room` has found room for them."""
        self.n_bytes += n_bytes
        self.by_tenant[tenant] = self.by_tenant.get(tenant, 0) + n_bytes

    def unreserve(self, tenant: int, n_bytes: int) -> None:
        self.reserve(tenant, -n_bytes)
        if not self.by_tenant[tenant]:
            del self.by_tenant[tenant]
            self._heaps.pop(tenant, None)  # only stale entries are left; a tenant may have been a single request

    def put(self, seg: Segment, blob: bytes | bytearray | memoryview) -> None:
        """Store bytes whose room is reserved."""
        seg.blob = blob
        self.n_segments += 1
        self.touch([seg])

    def touch(self, segs: Iterable[Segment]) -> None:
        """Record the use of a prefix's segments, deepest first, so that none ranks below one that needs it."""
        h = 0.0
        for seg in segs:
            if seg.blob is None:
                continue
            h = max(h, self._clock + (0.0 if seg.is_resident else seg.weight))
            self._push(seg, h)

    def drop(self, seg: Segment) -> None:
        """Drop the bytes."""
        assert seg.blob is not None
        seg.blob = None
        self.n_segments -= 1
        self.unreserve(seg.tree.tenant, seg.n_bytes)
        seg.let_go()

    def _push(self, seg: Segment, h: float) -> None:
        seg.rank = (h, next(self._order))
        heap = self._heaps.setdefault(seg.tree.tenant, [])
        heapq.heappush(heap, (*seg.rank, seg))
        if len(heap) > 2 * self.n_segments + HEAP_SLACK:
            heap[:] = [entry for entry in heap if _is_fresh(entry)]
            heapq.heapify(heap)

    def _victim(self) -> Segment | None:
        for tenant in sorted(self.by_tenant, key=lambda t: -self.by_tenant[t]):
            seg = self._least(self._heaps.get(tenant, []))
            if seg is not None:
                self._clock = max(self._clock, seg.rank[0])
                return seg
        return None

    def _least(self, heap: list[tuple[float, int, Segment]]) -> Segment | None:
        """Return the lowest-ranking segment that may be dropped. Entries below it that may not are put back."""
        aside: list[tuple[float, int, Segment]] = []
        found = None
        while heap and found is None:
            entry = heapq.heappop(heap)
            seg = entry[2]
            if not _is_fresh(entry):
                continue
            if seg.can_leave_ram:
                found = seg
            else:
                aside.append(entry)
        for entry in aside:
            heapq.heappush(heap, entry)
        return found


def _is_fresh(entry: tuple[float, int, Segment]) -> bool:
    """Whether the entry is current. False: the segment has been used since, or no longer has bytes."""
    return entry[2].blob is not None and entry[2].rank == entry[:2]
