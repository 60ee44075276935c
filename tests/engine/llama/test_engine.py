"""LlamaEngine, compared with llama.cpp itself: greedy text from a plain llama.h loop, token for token."""

import dataclasses
import os
from contextlib import closing

import numpy as np
import pytest

from tests.engine.conftest import DRAFT, MOE, OPTIONS, TARGET
from tests.engine.drive import generate, read, read_sliced, step
from uma_core.config.options import EngineOptions
from uma_core.engine.kernels import ALL_KERNELS
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.engine.llama.params import context_params

PROMPT = "The Debian project is an association of individuals who have made common cause to"


def greedy_by_llama_cpp(engine: LlamaEngine, tokens: list[int], n: int) -> list[int]:
    """Generate in llama.h's own way: one context, llama_batch_get_one, the greedy sampler, ggml's own kernels."""
    lib.uma_accel_enable(0)
    context = lib.llama_init_from_model(
        engine.model.handle, context_params(n_ctx=2048, n_batch=512, n_threads=2, n_threads_batch=2)
    )
    chain = lib.llama_sampler_init_greedy()
    try:
        out: list[int] = []
        feed = list(tokens)
        for _ in range(n):
            data = ffi.new("llama_token[]", feed)
            assert lib.llama_decode(context, lib.llama_batch_get_one(data, len(feed))) == 0
            feed = [lib.llama_sampler_sample(chain, context, -1)]
            out += feed
        return out
    finally:
        lib.llama_sampler_free(chain)
        lib.llama_free(context)
        lib.uma_accel_enable(ALL_KERNELS if engine.info.kernels else 0)


@pytest.mark.parametrize("path", [TARGET, DRAFT, MOE])
@pytest.mark.parametrize("n_repeat", [1, 25])
def test_greedy_equals_llama_cpp(path: str, n_repeat: int) -> None:
    """Token for token with ggml's own kernels. Ours round differently: see test_our_kernels_choose_alike."""
    with closing(LlamaEngine(path, dataclasses.replace(OPTIONS, cpu_kernels=False))) as engine:
        tokens = engine.tokenize(PROMPT * n_repeat, True, False)
        expected = greedy_by_llama_cpp(engine, tokens, 40)
        sliced = generate(engine, 0, read_sliced(engine, 0, np.array(tokens, np.int32), 1), 39)
        assert sliced == expected


@pytest.mark.parametrize("path", [TARGET, DRAFT, MOE])
def test_our_kernels_choose_alike(path: str) -> None:
    """With our kernels, greedy text may part from ggml's, but only where two tokens are nearly equal."""
    with closing(LlamaEngine(path, OPTIONS)) as engine:
        tokens = engine.tokenize(PROMPT, True, False)
        expected = greedy_by_llama_cpp(engine, tokens, 40)
        token = read(engine, 0, np.array(tokens, np.int32))
        for i, other in enumerate(expected):
            if token != other:
                logits = engine.logits(0) if i else engine.prefill_logits(0)
                assert logits[token] - logits[other] < 0.05 * logits.std()
                return
            token = step(engine, [(0, token)])[0]


@pytest.mark.parametrize("options", [{"kv_mode": "unified"}, {"flash_attn": "off"}, {"n_seq": 1}])
def test_other_memory_modes_generate_the_same_beginning(options: dict[str, object]) -> None:
    changed = dataclasses.replace(OPTIONS, **options)  # type: ignore[arg-type]
    with closing(LlamaEngine(TARGET, OPTIONS)) as plain, closing(LlamaEngine(TARGET, changed)) as other:
        tokens = np.array(plain.tokenize(PROMPT, True, False), np.int32)
        expected = generate(plain, 0, read(plain, 0, tokens), 3)
        assert generate(other, 0, read(other, 0, tokens), 3) == expected
        can_copy = other.info.capabilities.can_copy_prefix
        assert can_copy == ("n_seq" in options) and can_copy != any("no snapshots" in n for n in other.info.notes)


def test_metal_residency_reaches_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GGML_METAL_NO_RESIDENCY", "GGML_METAL_RESIDENCY_KEEP_ALIVE_S", "GGML_METAL_SHARED_BUFFERS_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    from uma_core.engine.select.open import open_engine

    options = EngineOptions(
        model=DRAFT,
        n_ctx=512,
        n_seq=1,
        threads=1,
        metal_residency=False,
        metal_keep_alive_s=7,
        metal_shared_buffers="off",
        engine="llama",
    )
    seen: dict[str, str] = {}
    monkeypatch.setattr(
        "uma_core.engine.llama.engine.LlamaModel",
        lambda *a, **k: seen.update(os.environ) or (_ for _ in ()).throw(KeyError),
    )
    with pytest.raises(KeyError):
        open_engine(options)
    assert seen["GGML_METAL_NO_RESIDENCY"] == "1"
    assert seen["GGML_METAL_RESIDENCY_KEEP_ALIVE_S"] == "7"
    assert seen["GGML_METAL_SHARED_BUFFERS_DISABLE"] == "1"


def test_fewer_experts_per_token_reach_the_model() -> None:
    one = dataclasses.replace(OPTIONS, moe_top_k=1)
    with closing(LlamaEngine(MOE, one)) as engine, closing(LlamaEngine(MOE, OPTIONS)) as plain:
        tokens = np.array(plain.tokenize(PROMPT, True, False), np.int32)
        assert generate(engine, 0, read(engine, 0, tokens), 20) != generate(plain, 0, read(plain, 0, tokens), 20)


def test_a_batch_smaller_than_the_rows_of_drafts() -> None:
    """llama.cpp's batch is no larger than the context that was asked for, though the context itself is."""
    engine = LlamaEngine(DRAFT, dataclasses.replace(OPTIONS, n_ctx=4, n_seq=1, takes_back=True))
    try:
        assert engine.info.n_ctx_seq > engine.info.n_batch == engine.info.capabilities.n_verify_rows == 4
    finally:
        engine.close()
