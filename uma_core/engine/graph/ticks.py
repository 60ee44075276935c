"""Which decode calls a loaded model is prepared for: their graphs are built at load, and are part of its estimate."""

from __future__ import annotations

from collections.abc import Iterator

from uma_core.engine.graph.forward import N_SMALL

RIDE_ROWS = (2, 3, 4, 5, 6, 8, 16)  # up to N_SMALL: each has a graph for every count of streams


def ride_rows(is_cpu: bool, n_batch: int) -> tuple[int, ...]:
    """Sizes of calls in which a prompt may ride. Our kernels read the weights once for so few rows. On a GPU chunks in gaps
    read as much, and masks would make such graphs many.
    """
    return tuple(n for n in RIDE_ROWS if n <= n_batch) if is_cpu else ()


def tick_shapes(n_seq: int, rides: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Rows of a call, and those of them that want logits: ticks of up to `n_seq` streams, alone and with a prompt beside them."""
    for n in range(1, min(n_seq, N_SMALL) + 1):
        yield n, n
        for rows in rides:
            if rows > n:
                yield rows, n
