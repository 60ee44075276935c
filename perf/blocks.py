"""Random quantised blocks, made at the speed of a copy: one random pool, read at ever other places.

Two periods that share no factor (quants and scales) keep rows from repeating, so logits do not tie.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perf.shapes import BLOCK, TensorSpec

_N_QUANTS = 1_000_003  # prime: blocks in the pool
_N_SCALES = 65_537  # prime
_BYTES = {"q8_0": 2 + BLOCK, "q4_0": 2 + BLOCK // 2}
# std of a block's integers: uniform over -127..127, and over -8..7
_INT_STD = {"q8_0": 73.6, "q4_0": 4.61}


class BlockPool:
    """An endless supply of random weights; the same seed and order of calls give the same bytes."""

    def __init__(self, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self._q8 = rng.integers(-127, 128, (_N_QUANTS, BLOCK), dtype=np.int8).view(np.uint8)
        self._q4 = rng.integers(0, 256, (_N_QUANTS, BLOCK // 2), dtype=np.uint8)
        self._spread = rng.uniform(0.7, 1.3, _N_SCALES).astype(np.float32)
        self._rng = rng
        self._at = 0

    def make(self, spec: TensorSpec, dead_rows: np.ndarray) -> np.ndarray:
        """The tensor's data: uint8 rows of blocks, or float32. `dead_rows` are zeroed where rows are tokens."""
        if spec.kind == "f32":
            ones = np.ones(spec.dims, np.float32)
            return ones if spec.std == 0.0 else self._rng.normal(0.0, spec.std, spec.dims).astype(np.float32)
        n_blocks = int(np.prod(spec.dims)) // BLOCK
        blocks = np.empty((n_blocks, _BYTES[spec.kind]), np.uint8)
        self._fill_quants(blocks, self._q8 if spec.kind == "q8_0" else self._q4)
        self._fill_scales(blocks, np.float32(spec.std / _INT_STD[spec.kind]))
        rows = blocks.reshape(*spec.dims[:-1], -1)
        if spec.is_vocab:
            rows[dead_rows] = 0
        return rows

    def _fill_quants(self, blocks: np.ndarray, pool: np.ndarray) -> None:
        for dst, src in _segments(len(blocks), self._at, len(pool)):
            blocks[dst, 2:] = pool[src]
        self._at += len(blocks)

    def _fill_scales(self, blocks: np.ndarray, scale: np.float32) -> None:
        pool = (self._spread * scale).astype(np.float16).view(np.uint8).reshape(-1, 2)
        for dst, src in _segments(len(blocks), self._at, len(pool)):
            blocks[dst, :2] = pool[src]


def _segments(n: int, start: int, period: int) -> Iterator[tuple[slice, slice]]:
    """Pairs of slices that copy n items out of a cyclic pool, beginning at `start`."""
    done, at = 0, start % period
    while done < n:
        size = min(n - done, period - at)
        yield slice(done, done + size), slice(at, at + size)
        done, at = done + size, 0


def byte_dims(spec: TensorSpec) -> tuple[int, ...]:
    """Dims of the tensor as stored, in bytes along the last axis (float32: in items)."""
    if spec.kind == "f32":
        return spec.dims
    return (*spec.dims[:-1], spec.dims[-1] // BLOCK * _BYTES[spec.kind])
