"""Programmable timing of the FakeEngine: shapes of real devices, so that schedules can be simulated.

Rules: pure. The policy never sees these costs; it is calibrated against them as against a real device.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class FakeCost:
    """Tables of (size, ns), linear between entries. Cells are counted per row."""

    decode: tuple[tuple[int, float], ...]  # rows -> ns at no context
    decode_cell_ns: float  # per row and cell
    prefill: tuple[tuple[int, float], ...]  # tokens -> ns at no context
    prefill_cell_ns: tuple[tuple[int, float], ...]  # tokens -> ns per token and cell
    n_layer: int
    node_share: float  # the longest graph node's share of a layer
    piece_overhead_ns: float  # one stop between pieces
    copy_ns_per_byte: float
    copy_fixed_ns: float

    def decode_ns(self, rows: list[tuple[int, int]]) -> float:
        """One ubatch. `rows`: (tokens, cells) per sequence."""
        n = sum(k for k, _ in rows)
        cells = sum(k * kv for k, kv in rows)
        if max(k for k, _ in rows) > 8:
            n_past = cells / max(1, n)
            return self.prefill_ns(n, int(n_past))
        return _at(self.decode, n) + self.decode_cell_ns * cells

    def prefill_ns(self, n_tokens: int, n_past: int) -> float:
        slope = _at(self.prefill_cell_ns, min(n_tokens, self.prefill_cell_ns[-1][0]))
        return _at(self.prefill, n_tokens) + slope * n_tokens * n_past

    def piece_ns(self, n_tokens: int, n_past: int) -> float:
        """Longest piece that cannot be cut: the heaviest matrix product of a layer, or its attention over a long
        context.
        """
        products = self.prefill_ns(n_tokens, 0)
        attention = self.prefill_ns(n_tokens, n_past) - products
        return max(products * self.node_share, attention) / self.n_layer

    def copy_ns(self, n_bytes: int) -> float:
        return self.copy_fixed_ns + n_bytes * self.copy_ns_per_byte


def _at(table: tuple[tuple[int, float], ...], n: float) -> float:
    for (n0, y0), (n1, y1) in itertools.pairwise(table):
        if n <= n0:
            return y0
        if n <= n1:
            return y0 + (y1 - y0) * (n - n0) / (n1 - n0)
    last_n, last_y = table[-1]
    return last_y if n <= last_n else last_y * n / last_n


INSTANT = FakeCost(((1, 1000.0),), 0.0, ((1, 1000.0),), ((1, 0.0),), 4, 0.5, 0.0, 0.0, 0.0)

# 0.5B Q8_0, two CPU threads, one stream per sequence: a second row costs more than a second call; 63 rows more than 64
CPU_SHAPE = FakeCost(
    decode=((1, 16.2 * MS), (2, 38.5 * MS), (3, 47.0 * MS), (4, 52.0 * MS), (8, 61.0 * MS), (16, 75.0 * MS)),
    decode_cell_ns=2300.0,
    prefill=(
        (1, 16.2 * MS),
        (8, 41 * MS),
        (16, 57 * MS),
        (32, 114 * MS),
        (63, 185 * MS),
        (64, 168 * MS),
        (128, 331 * MS),
        (256, 657 * MS),
        (512, 1350 * MS),
    ),
    prefill_cell_ns=((1, 2300.0), (63, 2300.0), (64, 1370.0), (256, 1140.0), (512, 890.0)),
    n_layer=24,
    node_share=0.3,
    piece_overhead_ns=15_000.0,
    copy_ns_per_byte=0.1,
    copy_fixed_ns=30_000.0,
)

# 8B Q8_0 on a data-centre GPU: eight rows cost little more than one, half layers are 0.5 ms
GPU_SHAPE = FakeCost(
    decode=((1, 3.9 * MS), (2, 4.4 * MS), (4, 5.5 * MS), (8, 7.9 * MS), (16, 8.5 * MS), (32, 10.5 * MS)),
    decode_cell_ns=30.0,
    prefill=(
        (1, 3.9 * MS),
        (8, 7.9 * MS),
        (32, 10.5 * MS),
        (64, 13.0 * MS),
        (128, 17.0 * MS),
        (256, 27.0 * MS),
        (512, 48.0 * MS),
    ),
    prefill_cell_ns=((1, 8.0),),
    n_layer=32,
    node_share=0.35,
    piece_overhead_ns=20_000.0,
    copy_ns_per_byte=0.02,
    copy_fixed_ns=20_000.0,
)
