"""KV in pages of 64 positions with reference counts: which sequence holds which page. A Store has their memory.

Rules: a page that several sequences hold is never written. A sequence that is about to write into one gets a copy
first.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush

import numpy as np

from uma_core.engine.graph.states import States
from uma_core.engine.graph.store import PAGE, Store
from uma_core.engine.lib import ffi


class Pages:
    """Owns the store.

    `table[seq, i]` is the page of positions 64 i .. 64 i + 63; only the first `n_pages(seq)` entries count.
    """

    def __init__(self, store: Store, counts: tuple[int, int, int], states: States | None = None) -> None:
        """`counts`: total pages, sequences, positions per sequence. Also owns `states`, those of recurrent layers."""
        n_pages, n_seq, self.n_ctx_seq = counts
        self.store = store
        self.states = states
        self.table = np.zeros((n_seq, -(-self.n_ctx_seq // PAGE)), np.int32)
        self.table_pointer = ffi.from_buffer("int32_t *", self.table)
        self.n_refs = np.zeros(n_pages, np.int32)
        self.n_held = [0] * n_seq  # positions that a sequence has pages for
        self._ready = [0] * n_seq  # positions below this are in pages that may be written; 0: not checked yet
        self._free = list(range(n_pages))  # a heap: low numbers are taken first, so that pages in use lie together

    @property
    def n_free(self) -> int:
        return len(self._free)

    def n_pages(self, seq: int) -> int:
        return -(-self.n_held[seq] // PAGE)

    def _take(self) -> int:
        page = heappop(self._free)
        self.n_refs[page] = 1
        self.store.taken(page)
        return page

    def _give(self, page: int) -> None:
        self.n_refs[page] -= 1
        if self.n_refs[page] == 0:
            heappush(self._free, page)

    def _n_needed(self, wanted: list[tuple[int, int, int]]) -> int:
        """Free pages needed to write all of these. Who writes into a shared page needs a copy, except the last of those
        who hold it.
        """
        n_new = sum(max(0, -(-(n + n_more) // PAGE) - self.n_pages(seq)) for seq, n, n_more in wanted)
        writers = Counter(int(self.table[seq, n // PAGE]) for seq, n, _ in wanted if n % PAGE)
        return n_new + sum(min(k, int(self.n_refs[page]) - 1) for page, k in writers.items())

    def _is_shared(self, seq: int, pos: int) -> bool:
        return self.n_refs[self.table[seq, pos // PAGE]] > 1  # type: ignore[no-any-return]

    def has_room(self, wanted: list[tuple[int, int, int]]) -> bool:
        """Whether all of (sequence, first position, how many) can be written together."""
        if any(n + n_more > self.n_ctx_seq for _, n, n_more in wanted):
            return False
        new = [each for each in wanted if each[1] + each[2] > self._ready[each[0]]]
        return not new or self._n_needed(new) <= len(self._free)

    def reserve(self, seq: int, n: int, n_more: int) -> None:
        """Make positions n .. n + n_more - 1 writable. `has_room` must have been true.

        Blocks for the copy of one shared page at most.
        """
        n_pages = self.n_pages(seq)
        self.n_held[seq] = max(self.n_held[seq], n + n_more)
        if n + n_more <= self._ready[seq]:
            return
        row = self.table[seq]
        if n % PAGE and self._is_shared(seq, n):
            shared = int(row[n // PAGE])
            own = self._take()
            self.store.copy(shared, own, 0, PAGE)
            self._give(shared)
            row[n // PAGE] = own
        for i in range(n_pages, -(-(n + n_more) // PAGE)):
            row[i] = self._take()
        self._ready[seq] = self.n_pages(seq) * PAGE

    def truncate(self, seq: int, n: int) -> None:
        """Give back the pages beyond the first n positions."""
        for i in range(-(-n // PAGE), self.n_pages(seq)):
            self._give(int(self.table[seq, i]))
        self.n_held[seq] = min(self.n_held[seq], n)
        self._ready[seq] = 0
        if self.states is not None:
            self.states.cut(seq, n)

    def share(self, src: int, dst: int, first: int, n: int) -> None:
        """Let `dst` hold pages from `first` on of `src` too, up to position n. `src` must hold all of them."""
        for i in range(first, -(-n // PAGE)):
            page = int(self.table[src, i])
            self.n_refs[page] += 1
            self.table[dst, i] = page
        self.n_held[dst] = n
        self._ready[src] = self._ready[dst] = 0

    def touch(self, seq: int) -> None:
        """Make reading a sequence's pages take as long as with content."""
        for page in self.table[seq, : self.n_pages(seq)]:
            self.store.touch(int(page))

    def trim(self) -> int:
        """Give the memory of free pages back to the system; returns bytes."""
        return sum(self.store.release(page) for page in self._free)

    @property
    def n_bytes(self) -> int:
        return self.store.n_bytes + (self.states.n_bytes if self.states is not None else 0)

    def close(self) -> None:
        self.store.close()
        if self.states is not None:
            self.states.close()
