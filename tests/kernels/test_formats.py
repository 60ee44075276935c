"""The matrix products, compared with the gguf package. Its dequantization is not ours, so it shows if we misread a
format throughout.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import build

TYPES = {
    "F16": (0, gguf.GGMLQuantizationType.F16, 1, 2),
    "Q8_0": (1, gguf.GGMLQuantizationType.Q8_0, 32, 34),
    "Q4_0": (2, gguf.GGMLQuantizationType.Q4_0, 32, 18),
    "Q4_K": (3, gguf.GGMLQuantizationType.Q4_K, 256, 144),
    "Q6_K": (4, gguf.GGMLQuantizationType.Q6_K, 256, 210),
    "Q5_K": (5, gguf.GGMLQuantizationType.Q5_K, 256, 176),
    "Q4_1": (6, gguf.GGMLQuantizationType.Q4_1, 32, 20),
    "Q5_0": (7, gguf.GGMLQuantizationType.Q5_0, 32, 22),
    "Q5_1": (8, gguf.GGMLQuantizationType.Q5_1, 32, 24),
    "IQ4_NL": (9, gguf.GGMLQuantizationType.IQ4_NL, 32, 18),
    "IQ4_XS": (10, gguf.GGMLQuantizationType.IQ4_XS, 256, 136),
    "MXFP4": (11, gguf.GGMLQuantizationType.MXFP4, 32, 17),
    "BF16": (12, gguf.GGMLQuantizationType.BF16, 1, 2),
}
PLAIN = {"F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"}  # also read in the file's own layout
# where a block's f16 values are
SCALES = {"Q6_K": (208,), **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)), "MXFP4": ()}
SIZE, INT64, POINTER = ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p


class Product(ctypes.Structure):
    """struct uma_mm"""

    _fields_ = [
        ("type", ctypes.c_int), ("n_out", INT64), ("n_in", INT64), ("n_rows", INT64), ("w", POINTER), ("w_stride",
        SIZE), ("x", POINTER),
        ("x_stride", SIZE), ("y", POINTER), ("y_stride", SIZE), ("y_index", POINTER), ("x_index", POINTER), ("acts",
        POINTER),
        ("is_repacked", ctypes.c_int),
    ]  # fmt: skip


class Table(ctypes.Structure):
    """struct uma_mm_table"""

    _fields_ = [
        ("panel", ctypes.c_int),
        ("min_rows", ctypes.c_int),
        ("acts_bytes", ctypes.CFUNCTYPE(SIZE, ctypes.c_int, INT64, INT64)),
        ("scratch_bytes", ctypes.CFUNCTYPE(SIZE, INT64)),
        ("pack", ctypes.CFUNCTYPE(None, ctypes.POINTER(Product), ctypes.c_int, ctypes.c_int)),
        ("rows", ctypes.CFUNCTYPE(None, ctypes.POINTER(Product), INT64, INT64, POINTER)),
        ("repacked_bytes", ctypes.CFUNCTYPE(SIZE, ctypes.c_int, INT64, INT64)),
        ("repack", ctypes.CFUNCTYPE(None, ctypes.c_int, INT64, INT64, POINTER, SIZE, POINTER)),
    ]


class Kernels(ctypes.Structure):
    """struct uma_kernels"""

    _fields_ = [("name", ctypes.c_char_p), ("mm", ctypes.POINTER(Table)), ("attn", POINTER)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = ctypes.CDLL(str(build.kernel_library(Path(tmp_path_factory.mktemp("kernels")) / "libkernels.so")))
    library.kernels.restype = library.kernels_named.restype = ctypes.POINTER(Kernels)
    return library


@pytest.fixture(scope="module")
def table(library: ctypes.CDLL) -> Table:
    return library.kernels().contents.mm.contents


def aligned(n_bytes: int) -> np.ndarray:
    raw = np.zeros(n_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes]


def random_weights(rng: np.random.Generator, name: str, n_out: int, n_blocks: int) -> np.ndarray:
    _, _, _, block_bytes = TYPES[name]
    if name == "F16":
        return rng.normal(size=(n_out, n_blocks)).astype(np.float16).view(np.uint8)
    if name == "BF16":
        return (
            (rng.normal(size=(n_out, n_blocks)).astype(np.float32).view(np.uint32) >> 16)
            .astype(np.uint16)
            .view(np.uint8)
        )
    blocks = rng.integers(0, 256, (n_out, n_blocks, block_bytes), dtype=np.uint8)
    if name == "MXFP4":
        blocks[:, :, 0] = rng.integers(110, 130, (n_out, n_blocks))  # exponents of scales that real files have
    for at in SCALES.get(name, (0,)):
        blocks[:, :, at : at + 2] = rng.normal(0, 0.05, (n_out, n_blocks, 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(n_out, -1)


def quantised(x: np.ndarray, name: str) -> np.ndarray:
    """Return the activations as the product sees them, in f64."""
    if name in ("F16", "BF16"):
        return x.astype(np.float64)
    blocks = x.reshape(len(x), -1, TYPES[name][2])
    top = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
    if blocks.shape[-1] == 32:
        d = (np.abs(top) / np.float32(127)).astype(np.float16).astype(np.float64)
        inverse = np.float32(127) / np.abs(top)
    else:
        inverse = np.float32(-127) / top
        d = (np.float32(1) / inverse).astype(np.float64)
    return (d * np.rint(blocks * inverse).astype(np.float64)).reshape(x.shape)


def product(table: Table, name: str, weights: np.ndarray, x: np.ndarray, is_repacked: bool) -> np.ndarray:
    code, _, block, block_bytes = TYPES[name]
    n_out, n_in = len(weights), weights.shape[1] // block_bytes * block
    read = weights
    if is_repacked:
        read = aligned(table.repacked_bytes(code, n_out, n_in))
        table.repack(code, n_out, n_in, weights.ctypes.data, weights.strides[0], read.ctypes.data)
    y = np.full((len(x), n_out), np.nan, np.float32)
    acts, scratch = aligned(table.acts_bytes(code, n_in, len(x)) or 1), aligned(table.scratch_bytes(len(x)))
    call = Product(
        code, n_out, n_in, len(x), read.ctypes.data, weights.strides[0], x.ctypes.data, x.strides[0], y.ctypes.data,
        y.strides[0],
        None, None, acts.ctypes.data, is_repacked,
    )  # fmt: skip
    table.pack(ctypes.byref(call), 0, 1)
    table.rows(ctypes.byref(call), 0, n_out, scratch.ctypes.data)
    return y


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=25, deadline=None)
@given(n_out=st.integers(1, 70), n_blocks=st.integers(1, 20), n_rows=st.integers(1, 20), seed=st.integers(0, 2**32 - 1))
def test_products_agree_with_the_gguf_packages_reading_of_the_format(table, name, n_out, n_blocks, n_rows, seed):
    rng = np.random.default_rng(seed)
    n_blocks = min(n_blocks, 5) if TYPES[name][2] == 256 else n_blocks
    weights = random_weights(rng, name, n_out, n_blocks)
    x = rng.normal(size=(n_rows, n_blocks * TYPES[name][2])).astype(np.float32)
    exact_weights = gguf.dequantize(weights, TYPES[name][1]).astype(np.float64)
    if name == "F16":
        exact_weights = weights.view(np.float16).astype(np.float64)
    acts = quantised(x, name)
    can_repack = bool(table.repacked_bytes(TYPES[name][0], 1, TYPES[name][2]))
    assert can_repack or name in PLAIN
    for is_repacked in [False] * (name in PLAIN) + [True] * can_repack:
        error = np.abs(product(table, name, weights, x, is_repacked) - acts @ exact_weights.T)
        assert (error <= 1e-6 * (np.abs(acts) @ np.abs(exact_weights).T) + 1e-30).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", TYPES)
def test_a_row_that_is_not_finite_gives_no_finite_values(table, name, bad):
    """Else a session whose logits mean nothing would get tokens instead of an error."""
    rng = np.random.default_rng(1)
    code, _, block, _ = TYPES[name]
    weights = random_weights(rng, name, 20, 2 * block)[:, : 2 * TYPES[name][3] * (block > 1) or None]
    x = rng.normal(size=(3, weights.shape[1] // TYPES[name][3] * block)).astype(np.float32)
    x[1, 5 % block] = bad
    can_repack = bool(table.repacked_bytes(code, 1, block))
    for is_repacked in [False] * (name in PLAIN) + [True] * can_repack:
        y = product(table, name, weights, x, is_repacked)
        assert not np.isfinite(y[1]).any()
        assert np.isfinite(y[[0, 2]]).all()


# instruction set -> what `repack` makes of the weights below, in this version of the layout. (NEON's tables repack
# nothing in the daemon.)
VERSION = 1
REPACKED = {
    "avx512vnni": "64bbd44e68e29fd1",
    "avx512": "0e70a103c96c7a5d",
    "avxvnni": "15587dc339c2eb62",
    "avx2": "e1edfbdb3592273b",
    "portable": "e1edfbdb3592273b",
}


@pytest.mark.parametrize("isa", REPACKED)
def test_another_layout_has_another_version(library: ctypes.CDLL, isa: str) -> None:
    """Files of repacked weights outlive the daemon that wrote them: a new layout under an old version would be read as
    the old one.
    """
    kernels = library.kernels_named(isa.encode())
    if not kernels:
        return
    table, rng, digest = kernels.contents.mm.contents, np.random.default_rng(1), hashlib.sha256()
    for name, (code, _, block, _) in TYPES.items():
        n_bytes = table.repacked_bytes(code, 70, 2 * block)
        if n_bytes:
            weights, out = random_weights(rng, name, 70, 2), aligned(n_bytes)
            table.repack(code, 70, 2 * block, weights.ctypes.data, weights.strides[0], out.ctypes.data)
            digest.update(out.tobytes())
    header = (build.ROOT / "native" / "kernels" / "kernels.h").read_text()
    assert re.search(r"UMA_REPACKED_VERSION = (\d+)", header)[1] == str(VERSION)  # type: ignore[index]
    assert digest.hexdigest()[:16] == REPACKED[isa], "raise UMA_REPACKED_VERSION, here and in kernels.h"
