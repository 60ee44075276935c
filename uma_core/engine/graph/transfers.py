"""KV on its way between sequences and host bytes. What can be shared is not moved; what is moved goes page by page."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from uma_core.engine.blob import new_blob
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.store import PAGE
from uma_core.engine.lib import lib


class Steps:
    """A Transfer over positions start..n: `move(p0, p1)` for each stretch within one page, then `finish` once."""

    def __init__(
        self, n_bytes: int, span: tuple[int, int], move: Callable[[int, int], None], finish: Callable[[], None]
    ) -> None:
        self.n_bytes = n_bytes
        self._at, self._end = span
        self._move = move
        self._finish = finish
        self._is_open = True

    def step(self, until_ns: int) -> bool:
        while self._is_open and self._at < self._end:
            stop = min(self._end, (self._at // PAGE + 1) * PAGE)
            self._move(self._at, stop)
            self._at = stop
            if stop < self._end and lib.uma_now_ns() >= until_ns:
                return False
        if self._is_open:
            self._is_open = False
            self._finish()
        return True

    def close(self) -> None:
        """A transfer given up leaves what was there: nothing counts before `finish`."""
        self._is_open = False


class HostExport(Steps):
    """Owns the bytes. They are not zeroed: the first touch of 100 MB would be a pause of its own."""

    def __init__(self, pages: Pages, seq: int, start: int, n: int) -> None:
        layout = pages.store.layout
        self.blob: bytearray | memoryview = new_blob((n - start) * layout.position_bytes)
        views = layout.views(np.frombuffer(self.blob, np.uint8), n - start)
        row = pages.table[seq]

        def move(p0: int, p1: int) -> None:
            begin = p0 % PAGE
            pages.store.read(
                int(row[p0 // PAGE]), begin, begin + p1 - p0, [view[:, p0 - start : p1 - start] for view in views]
            )

        super().__init__(len(self.blob), (start, n), move, lambda: None)


def import_moves(
    pages: Pages, seq: int, blob: bytes | bytearray | memoryview, origin: int
) -> Callable[[int, int], None]:
    """How positions p0..p1, within one page, get from a blob that begins at `origin` to the sequence."""
    data, layout = np.frombuffer(blob, np.uint8), pages.store.layout
    views = layout.views(data, data.size // layout.position_bytes)

    def move(p0: int, p1: int) -> None:
        begin = p0 % PAGE
        cells = [view[:, p0 - origin : p1 - origin] for view in views]
        pages.store.write(int(pages.table[seq, p0 // PAGE]), begin, begin + p1 - p0, cells)

    return move
