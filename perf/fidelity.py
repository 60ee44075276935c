"""How exact products with quantised weights are: divergence from an exact computation with the same weights, beside
ggml's own kernels.

A trained model's weights are quantised to a type, and that type's values are also written as F32. What llama.cpp
computes from the F32 weights is exact for our purpose. The difference between it and a kernel's predictions comes only
from how the kernel rounds activations and sums.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

from perf.gguf_file import save
from perf.perplexity import N_ROWS, WINDOW, log_probabilities
from uma_core.config.options import EngineOptions
from uma_core.engine.lib import ffi, lib
from uma_core.engine.select.open import open_engine

TYPES = (
    "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4", "f16", "bf16",
)  # fmt: skip
GGML = EngineOptions(engine="llama", cpu_kernels=False, prefill_lanes=0)
OURS = EngineOptions(engine="graph", prefill_lanes=0)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Fidelity of one model with weights of one type.

    Divergences are mean Kullback-Leibler divergences from the exact predictions, in nats a token.
    """

    kind: str
    n_tokens: int
    kl_ggml: float
    kl_ours: float
    error: float  # standard error of the ratio of the two, over tokens
    perplexity_exact: float
    perplexity_ggml: float
    perplexity_ours: float

    @property
    def ratio(self) -> float:
        return self.kl_ours / self.kl_ggml


def fidelities(model: str, text: str, kinds: tuple[str, ...], n_tokens: int, threads: int) -> Iterator[Fidelity]:
    """Yield one result for each type that the model's shape allows. Blocks: some seconds each for a model of 30 million
    weights.
    """
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="uma-fidelity-") as folder:
            path, exactly = Path(folder) / "model.gguf", Path(folder) / "exact.gguf"
            if not rewrite(Path(model), kind, path, exactly):
                continue
            tokens, exact = predictions(GGML, exactly, text, n_tokens, threads)
            _, ggml = predictions(GGML, path, text, n_tokens, threads)
            _, ours = predictions(OURS, path, text, n_tokens, threads)
        a, b = divergence(exact, ours), divergence(exact, ggml)
        ratio = a.mean() / b.mean()
        error = float(np.sqrt(np.mean((a - ratio * b) ** 2) / len(a)) / b.mean())
        yield Fidelity(
            kind, len(a), float(b.mean()), float(a.mean()), error,
            *(perplexity(found, tokens) for found in (exact, ggml, ours)),
        )  # fmt: skip


def rewrite(model: Path, kind: str, path: Path, exactly: Path) -> bool:
    """Write the model with its matrices in a type, and with F32 matrices of that type's values.

    False: the matrices' rows do not fit the type's blocks.
    """
    reader = gguf.GGUFReader(model)
    number = gguf.GGMLQuantizationType[kind.upper()]
    matrices = {t.name for t in reader.tensors if len(t.shape) > 1}
    if any(int(t.shape[0]) % gguf.GGML_QUANT_SIZES[number][0] for t in reader.tensors if t.name in matrices):
        return False
    writers = [gguf.GGUFWriter(to, str(reader.fields["general.architecture"].contents())) for to in (path, exactly)]
    for writer in writers:
        _copy_metadata(reader, writer)
    for tensor in reader.tensors:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name not in matrices:
            for writer in writers:
                writer.add_tensor(tensor.name, weights)
            continue
        blocks = quantised(weights, number)
        writers[0].add_tensor(tensor.name, blocks, raw_dtype=number)
        writers[1].add_tensor(tensor.name, exact_values(blocks, number, weights.shape))
    for writer in writers:
        save(writer)
    return True


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        of_array = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=of_array)


def quantised(weights: np.ndarray, number: gguf.GGMLQuantizationType) -> np.ndarray:
    """Return (..., bytes of a row) uint8, made by llama.cpp's own quantiser."""
    n_in = weights.shape[-1]
    block, size = gguf.GGML_QUANT_SIZES[number]
    out = np.zeros((*weights.shape[:-1], n_in // block * size), np.uint8)
    source, target = ffi.from_buffer("float[]", np.ascontiguousarray(weights)), ffi.from_buffer("char[]", out)
    n_bytes = lib.ggml_quantize_chunk(int(number), source, target, 0, weights.size // n_in, n_in, ffi.NULL)
    assert n_bytes == out.nbytes
    return out


def exact_values(blocks: np.ndarray, number: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> np.ndarray:
    """Return the values of the blocks, f32, as llama.cpp itself reads them."""
    out = np.zeros(shape, np.float32)
    to_float = lib.ggml_get_type_traits(int(number)).to_float
    to_float(ffi.from_buffer("char[]", blocks), ffi.from_buffer("float[]", out), out.size)
    return out


def predictions(
    options: EngineOptions, model: Path, text: str, n_tokens: int, threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the token after each row, and (rows, n_vocab) f32 log probabilities."""
    sizes = {"n_seq": 1, "n_ctx": WINDOW, "n_batch": N_ROWS, "n_ubatch": N_ROWS}
    engine = open_engine(replace(options, model=str(model), threads=threads, **sizes))  # type: ignore[arg-type]
    try:
        tokens = np.array(engine.tokenize(text, False, False)[:n_tokens], np.int32)
        windows = [tokens[at : at + WINDOW] for at in range(0, len(tokens) - 1, WINDOW)]
        rows = [log_p.astype(np.float32) for window in windows for log_p in log_probabilities(engine, window)]
        return np.concatenate([window[1:] for window in windows]), np.array(rows)
    finally:
        engine.close()


def divergence(exact: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return (rows,) f64: the sum over the vocabulary of p log(p / q)."""
    return np.array([float(np.exp(p) @ (p - q)) for p, q in zip(_rows(exact), _rows(found), strict=True)])


def _rows(values: np.ndarray) -> Iterator[np.ndarray]:
    return (row.astype(np.float64) for row in values)


def perplexity(found: np.ndarray, tokens: np.ndarray) -> float:
    return float(np.exp(-found[np.arange(len(tokens)), tokens].astype(np.float64).mean()))
