"""The decode calls for which a loaded model is prepared: their graphs are built at load, and count in its estimate."""

from __future__ import annotations

from collections.abc import Iterator

from uma_core.engine.graph.forward import N_SMALL

# Most rows of a call with drafts. With 16 rather than 8, four streams' edits are 1.74 rather than 1.53 times as fast
# (docs/SPECULATION.md). Graphs of more rows are not kept. Recurrent layers keep a state of each row, of 10 to 20 MB.
VERIFY_ROWS = N_SMALL
VERIFY_ROWS_OF_STATES = 8
RIDE_ROWS = (2, 3, 4, 5, 6, 8, 16)  # up to N_SMALL: each has a graph for every count of streams


def ride_rows(is_cpu: bool, n_batch: int) -> tuple[int, ...]:
    """Sizes of calls that may hold a prompt's rows. Our kernels read the weights once for these few rows. On a GPU
    chunks in gaps read as much, and masks would require many such graphs.
    """
    return tuple(n for n in RIDE_ROWS if n <= n_batch) if is_cpu else ()


def verify_rows(n_batch: int, has_states: bool) -> int:
    """Most rows of a call that holds drafts."""
    return min(VERIFY_ROWS_OF_STATES if has_states else VERIFY_ROWS, n_batch)


def tick_shapes(n_seq: int, rides: tuple[int, ...], n_verify: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of a call and how many of them want logits: for ticks of up to `n_seq` streams alone, with drafts,
    and with a prompt beside them.
    """
    n_most = min(n_seq, N_SMALL)
    for n in range(n_most + 1, n_verify + 1):
        yield n, n
        for rows in rides:
            if n < rows <= n_verify:  # drafts, and a prompt beside them
                yield rows, n
    for n in range(1, n_most + 1):
        yield n, n
        for rows in rides:
            if rows > n:
                yield rows, n
