"""Weights that are repacked for our products compute the same as the file's own weights, and the memory report counts
them as they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.engine.graph.loading import has_repacked, logits_of, opened
from tests.engine.graph.models import BLOCKS_OF_32, MODELS, TYPED
from uma_core.engine.graph import load
from uma_core.engine.header import Header
from uma_core.engine.kernels import use_kernels

# in standard deviations of the logits: sums have another order if a processor's table leaves single rows to ggml
KERNEL_NOISE = 1e-4


# without repacked weights these take ggml's products, or ours with sums that are rounded otherwise
SUMMED_OTHERWISE = [
    *(f"llama-{quant}" for quant in (*BLOCKS_OF_32, "q4_k", "q5_k", "q6_k", "iq4_xs")),
    "mixtral-q4_k",
    "mixtral-mxfp4",
]
SUMMED_ALIKE = ["llama", "llama-q4_0", "qwen2", "gemma", "mixtral", "llama-f16", "llama-bf16"]


@pytest.mark.parametrize("name", SUMMED_ALIKE)
def test_logits_are_those_of_the_files_weights(name: str, written) -> None:
    path = written((MODELS | TYPED)[name])
    with opened(path, "mmap") as mapped, opened(path, "auto") as repacked:
        expected, found = logits_of(mapped), logits_of(repacked)
    assert np.abs(found - expected).max() <= KERNEL_NOISE * expected.std()


@pytest.mark.parametrize("name", SUMMED_OTHERWISE)
def test_types_that_are_summed_otherwise_are_as_exact(name: str, written) -> None:
    """Repacked weights, and those that are not, are measured against the same weights in f32: where an activation lies
    between two of its quantised values, the last bit of a sum decides, so their logits cannot be compared directly.
    """
    path, model = written(TYPED[name]), TYPED[name]
    exactly = written(replace(model, quant=f"exact {model.quant}"))
    with opened(exactly, "mmap", cpu_kernels=False) as engine:
        exact = logits_of(engine)
    with opened(path, "mmap") as mapped, opened(path, "auto") as repacked:
        theirs, ours = (float(np.square(logits_of(engine) - exact).mean()) ** 0.5 for engine in (mapped, repacked))
    assert ours <= 1.2 * theirs  # over 1,600 logits; the two differ only by rounding
    assert ours <= 0.06 * exact.std()


def test_a_tied_embedding_is_in_memory_twice_and_other_weights_once(written) -> None:
    if not has_repacked():
        pytest.skip("this processor's kernels repack nothing")
    for name, is_tied in (("llama", False), ("qwen2", True)):
        path = written(MODELS[name])
        header = Header(path)
        n_file, embedding = (
            sum(place.n_bytes for place in header.tensors.values()),
            header.tensors["token_embd.weight"].n_bytes,
        )
        header.close()
        with opened(path, "auto") as engine:
            extra = engine.info.weight_bytes - n_file - (embedding if is_tied else 0)
            assert 0 <= extra < 0.1 * n_file  # panels are padded


def test_without_room_for_copies_the_file_stays_mapped(written, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(MODELS["llama"])
    monkeypatch.setattr(load, "available_bytes", lambda: 1000)
    with opened(path, "auto") as engine, opened(path, "mmap") as mapped:
        assert engine.info.weight_bytes == mapped.info.weight_bytes
        assert np.array_equal(logits_of(engine), logits_of(mapped))


def test_without_our_kernels_the_files_weights_are_read(written) -> None:
    path = written(MODELS["llama"])
    with opened(path, "auto", cpu_kernels=False) as engine, opened(path, "mmap", cpu_kernels=False) as mapped:
        assert engine.info.weight_bytes == mapped.info.weight_bytes
        assert np.array_equal(logits_of(engine), logits_of(mapped))


def test_repacked_weights_stay_readable_when_another_engine_switches_the_kernels_off(written) -> None:
    path = written(MODELS["llama"])
    with opened(path, "auto") as engine:
        expected = logits_of(engine)
        try:
            use_kernels(False)
            for seq in range(4):
                engine.kv_truncate(seq, 0)
            found = logits_of(engine)
        finally:
            use_kernels(True)
    assert np.abs(found - expected).max() <= 0.05 * expected.std()
