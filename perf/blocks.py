"""Random quantised blocks, made at the speed of a copy: each is read from another place in one random pool.

The pools of quants and scales have lengths without a common factor, so rows do not repeat and logits do not tie.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perf.shapes import TensorSpec

_N_QUANTS = 1_000_003  # prime: blocks in the pool
_N_SCALES = 65_537  # prime
_N_QUANTISED = 65_521  # prime: blocks of a pool that llama.cpp's quantiser makes, about a second each
# by type: weights in a block, its bytes, and the places of its f16 scales (MXFP4 has an exponent instead)
BLOCKS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "q8_0": (32, 34, (0,)),
    "q4_0": (32, 18, (0,)),
    "q4_k": (256, 144, (0, 2)),
    "q5_k": (256, 176, (0, 2)),
    "q6_k": (256, 210, (208,)),
    "iq4_xs": (256, 136, (0,)),
    "mxfp4": (32, 17, ()),
}
# standard deviation of a block's integers: uniform over -127..127, and over -8..7
_INT_STD = {"q8_0": 73.6, "q4_0": 4.61}


class BlockPool:
    """An endless supply of random weights; the same seed and order of calls give the same bytes."""

    def __init__(self, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self._q8 = rng.integers(-127, 128, (_N_QUANTS, 32), dtype=np.int8).view(np.uint8)
        self._q4 = rng.integers(0, 256, (_N_QUANTS, 16), dtype=np.uint8)
        self._spread = rng.uniform(0.7, 1.3, _N_SCALES).astype(np.float32)
        self._quantised: dict[str, np.ndarray] = {}  # by type: blocks of weights with a standard deviation of 1
        self._rng = rng
        self._at = 0

    def make(self, spec: TensorSpec, dead_rows: np.ndarray) -> np.ndarray:
        """Return the tensor's data: uint8 rows of blocks, or float32. `dead_rows` are zeroed if rows are tokens."""
        if spec.kind == "f32":
            filled = np.full(spec.dims, spec.fill, np.float32)
            return filled if spec.std == 0.0 else self._rng.normal(0.0, spec.std, spec.dims).astype(np.float32)
        n_weights, n_bytes, _ = BLOCKS[spec.kind]
        blocks = np.empty((int(np.prod(spec.dims)) // n_weights, n_bytes), np.uint8)
        if spec.kind in _INT_STD:
            self._fill_quants(blocks, self._q8 if spec.kind == "q8_0" else self._q4)
            self._fill_scales(blocks, np.float32(spec.std / _INT_STD[spec.kind]))
        else:
            self._fill_quantised(blocks, spec)
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

    def _fill_quantised(self, blocks: np.ndarray, spec: TensorSpec) -> None:
        pool = self._pool_of(spec.kind)
        if spec.kind == "mxfp4":  # its scale is a power of two: the nearest exponent
            pool = pool.copy()
            pool[:, 0] = np.clip(pool[:, 0].astype(np.int64) + round(np.log2(spec.std)), 1, 254)
        for dst, src in _segments(len(blocks), self._at, len(pool)):
            blocks[dst] = pool[src]
        for dst, src in _segments(len(blocks), self._at, len(self._spread)):
            factor = self._spread[src] * np.float32(spec.std)
            for at in BLOCKS[spec.kind][2]:
                scales = blocks[dst, at : at + 2].copy().view(np.float16)[:, 0]
                blocks[dst, at : at + 2] = (scales * factor).astype(np.float16)[:, None].view(np.uint8)
        self._at += len(blocks)

    def _pool_of(self, kind: str) -> np.ndarray:
        """Return (blocks, bytes) uint8: normal weights, as llama.cpp's quantiser writes them (ggml_quantize_chunk)."""
        if kind not in self._quantised:
            import gguf

            # imported here: files of other types are made before the bindings are built
            from uma_core.engine.lib import ffi, lib

            n_weights, n_bytes, _ = BLOCKS[kind]
            weights = self._rng.standard_normal((_N_QUANTISED, n_weights), np.float32)
            out = np.zeros((_N_QUANTISED, n_bytes), np.uint8)
            number = int(gguf.GGMLQuantizationType[kind.upper()])
            source, target = ffi.from_buffer("float[]", weights), ffi.from_buffer("char[]", out)
            lib.ggml_quantize_chunk(number, source, target, 0, _N_QUANTISED, n_weights, ffi.NULL)
            self._quantised[kind] = out
        return self._quantised[kind]


def _segments(n: int, start: int, period: int) -> Iterator[tuple[slice, slice]]:
    """Yield pairs of slices that copy n items out of a cyclic pool, beginning at `start`."""
    done, at = 0, start % period
    while done < n:
        size = min(n - done, period - at)
        yield slice(done, done + size), slice(at, at + size)
        done, at = done + size, 0


def byte_dims(spec: TensorSpec) -> tuple[int, ...]:
    """Return the dimensions of the tensor as stored, in bytes along the last axis (float32: in items)."""
    if spec.kind == "f32":
        return spec.dims
    n_weights, n_bytes, _ = BLOCKS[spec.kind]
    return (*spec.dims[:-1], spec.dims[-1] // n_weights * n_bytes)
