"""Pages of a small shape, in either memory."""

from __future__ import annotations

import numpy as np

from uma_core.config.options import EngineOptions
from uma_core.engine.graph.arena import Arena
from uma_core.engine.graph.cells import Cells
from uma_core.engine.graph.device import device_of
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.shape import Layer, Rope, Scaling, Shape
from uma_core.engine.graph.store import PAGE

N_SEQ, N_CTX_SEQ = 3, 300
ROPE = Rope(32, 1e4, 1.0)
# the second layer has more and longer heads, and its K and V differ; the third layer reads the first one's pages
LAYERS = (Layer(2, 1, 32, 32, ROPE, 0), Layer(2, 2, 96, 64, ROPE, 1), Layer(2, 1, 32, 32, ROPE, 0))
SHAPE = Shape("llama", LAYERS, 32, 64, 512, 1e-6, Scaling(512), 0, 0, 0.0, 1.0)
PARTS = [(2, 1, 1, 64), (1, 1, 2, 192), (1, 1, 2, 128)]  # K and V alike, positions, KV heads, bytes of a head


class World:
    """Each position of a sequence holds a number that is written nowhere else."""

    def __init__(self, n_pages: int, is_stock: bool = False) -> None:
        store = (
            Cells(SHAPE, "f16", n_pages, device_of(EngineOptions(n_gpu_layers=0), is_stock=True), False)
            if is_stock
            else Arena(SHAPE, "f16", n_pages)
        )
        self.pages = Pages(store, (n_pages, N_SEQ, N_CTX_SEQ))
        self.content: list[list[int]] = [[] for _ in range(N_SEQ)]
        self.n_written = 0

    def write(self, seq: int, n: int) -> None:
        held = self.content[seq]
        if not self.pages.has_room([(seq, len(held), n)]):
            return
        self.pages.reserve(seq, len(held), n)
        for _ in range(n):
            self.n_written += 1
            cells = [np.zeros(part, np.uint8) for part in PARTS]
            for part in cells:
                part[:, 0, :, -4:] = np.frombuffer(self.n_written.to_bytes(4, "little"), np.uint8)
            self.pages.store.write(*self._place(seq, len(held)), cells)
            held.append(self.n_written)

    def _place(self, seq: int, pos: int) -> tuple[int, int, int]:
        return int(self.pages.table[seq, pos // PAGE]), pos % PAGE, pos % PAGE + 1

    def _read(self, seq: int, pos: int) -> int:
        """Return the number at a position. It is the same in K and V of every layer."""
        cells = [np.empty(part, np.uint8) for part in PARTS]
        self.pages.store.read(*self._place(seq, pos), cells)
        (number,) = {head[-4:].tobytes() for part in cells for cell in part for head in cell[0]}
        return int.from_bytes(number, "little")

    def cut(self, seq: int, n: int) -> None:
        if n < len(self.content[seq]):
            self.pages.truncate(seq, n)
            del self.content[seq][n:]

    def share(self, src: int, dst: int) -> None:
        if src != dst:
            self.cut(dst, 0)
            self.pages.share(src, dst, 0, len(self.content[src]))
            self.content[dst] = list(self.content[src])

    def check(self) -> None:
        for seq, held in enumerate(self.content):
            assert [self._read(seq, p) for p in range(len(held))] == held
        listed = [int(p) for seq in range(N_SEQ) for p in self.pages.table[seq, : self.pages.n_pages(seq)]]
        assert [listed.count(p) for p in range(len(self.pages.n_refs))] == self.pages.n_refs.tolist()
        assert self.pages.n_free == self.pages.n_refs.tolist().count(0)
