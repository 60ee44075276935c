"""What sampling a row costs at a 152k vocabulary, in our C helper: greedy, and the usual chains."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from perf.gguf_file import ensure
from uma_core.config.options import EngineOptions
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.types import SamplingParams

N_VOCAB = 151_936
CHAINS = {
    "greedy": SamplingParams(),
    "top-k 40, top-p, temperature": SamplingParams(temperature=0.8, top_k=40, top_p=0.95),
    "top-p alone": SamplingParams(temperature=0.8, top_k=0, top_p=0.95),
    "min-p alone": SamplingParams(temperature=0.8, top_k=0, min_p=0.05),
    "penalties and top-k": SamplingParams(temperature=0.8, top_k=40, repeat_penalty=1.1),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    """Sampler chains need a model, but the rows below do not come from it."""
    engine = LlamaEngine(str(ensure("tiny-q8_0")), EngineOptions(threads=1, n_ctx=512, n_seq=1))
    yield engine
    engine.close()


@pytest.mark.parametrize("name", CHAINS)
def test_sample_a_row(benchmark: BenchmarkFixture, engine: LlamaEngine, name: str) -> None:
    row = np.random.default_rng(1).normal(0.0, 3.0, N_VOCAB).astype(np.float32)
    params = CHAINS[name]
    sampler = None if params.is_greedy else engine.sampler(params, 1)
    logits = ffi.cast("float *", row.ctypes.data)
    token = benchmark(lib.uma_sample, logits, N_VOCAB, ffi.NULL if sampler is None else sampler.handle)  # type: ignore[attr-defined]
    if sampler is not None:
        sampler.close()
    assert 0 <= token < N_VOCAB
    if params.is_greedy:
        assert token == int(row.argmax())
