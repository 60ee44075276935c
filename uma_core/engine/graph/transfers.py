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

    def __init__(self, n_bytes: int, span: tuple[int, int], move: Callable[[int, int], None], finish: Callable[[], None]) -> None:
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
        self.blob: bytearray | memoryview = new_blob(blob_bytes(pages, n - start))
        view = blob_view(pages, np.frombuffer(self.blob, np.uint8), n - start)
        row = pages.table[seq]

        def move(p0: int, p1: int) -> None:
            begin = p0 % PAGE
            pages.store.read(int(row[p0 // PAGE]), begin, begin + p1 - p0, view[:, :, p0 - start : p1 - start])

        super().__init__(len(self.blob), (start, n), move, lambda: None)


def import_moves(pages: Pages, seq: int, blob: bytes | bytearray | memoryview, origin: int) -> Callable[[int, int], None]:
    """How positions p0..p1, within one page, get from a blob that begins at `origin` to the sequence."""
    data = np.frombuffer(blob, np.uint8)
    view = blob_view(pages, data, data.size // cell_bytes(pages))

    def move(p0: int, p1: int) -> None:
        begin = p0 % PAGE
        pages.store.write(int(pages.table[seq, p0 // PAGE]), begin, begin + p1 - p0, view[:, :, p0 - origin : p1 - origin])

    return move


def cell_bytes(pages: Pages) -> int:
    """K and V of one position, all layers."""
    return pages.store.page_bytes // PAGE


def blob_bytes(pages: Pages, n: int) -> int:
    return n * cell_bytes(pages)


def blob_view(pages: Pages, blob: np.ndarray, n: int) -> np.ndarray:
    """(layer, K and V, position, KV head, bytes of a row): a snapshot has positions in order, whatever pages they came from."""
    n_layer, n_head_kv, row = pages.store.blob_shape
    return blob.reshape(n_layer, 2, n, n_head_kv, row)
