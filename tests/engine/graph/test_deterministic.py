"""A row's logits have the same bits in any company: random schedules on one engine are compared with the same tokens,
read at once on another engine.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from tests.engine.conftest import DRAFT, MOE, OPTIONS, TARGET
from tests.engine.drive import generate, read, step, tokens_of
from tests.engine.graph.conftest import SMALL
from tests.engine.graph.models import BLOCKS_OF_32, BLOCKS_OF_256, MODELS, TYPED, Model
from tests.engine.graph.world import World
from tests.engine.headers import choose
from uma_core.config.options import EngineOptions
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.kernels import use_kernels
from uma_core.engine.select.open import open_engine
from uma_core.errors import ErrorCode, UmaError

N_OPERATIONS = 25  # per schedule
IS_FULL = os.environ.get("UMA_FUZZ") == "full"
CASES = [
    *(f"llama-{quant}" for quant in ("q4_0", "f16", "bf16", *BLOCKS_OF_32, *BLOCKS_OF_256)),
    *(
        "llama",
        "mixtral",
        "mixtral-q4_k",
        "mixtral-mxfp4",
        "qwen2",
        "qwen2moe",
        "qwen3moe",
        "gemma2",
        "gemma3",
        "gemma4-small",
        "gemma4-experts",
    ),
    *(
        "gpt-oss",
        "phi3",
        "mistral3",
        "granitemoe-shared",
        "deepseek2-groups",
        "deepseek2-heads",
        "glm4moe",
        "olmo2-windows",
        "cohere2",
    ),
]
N_SCHEDULES = 10_000 // (2 * len(CASES) + 9) + 1 if IS_FULL else 2

pytestmark = pytest.mark.skipif(not use_kernels(True), reason="no kernels of ours for this processor")


def has_promise(engine: GraphEngine) -> bool:
    return engine.info.is_deterministic


def check(path: str, options: EngineOptions, seed: int) -> None:
    """The reference reads each sequence alone, with another number of threads."""
    world = World(path, seed, False, options)
    with closing(world.engine), closing(GraphEngine(path, replace(options, threads=1))) as plain:
        if not has_promise(world.engine):
            pytest.skip("this processor's kernels leave single rows to ggml")
        for _ in range(N_SCHEDULES):
            world.live(N_OPERATIONS)
            held = [
                seq for seq, tokens in enumerate(world.tokens) if tokens and len(tokens) < world.engine.info.n_ctx_seq
            ]
            if held:
                texts = step(world.engine, [(seq, 100) for seq in held])
            for row, seq in enumerate(held):
                tokens = world.tokens[seq]
                plain.kv_truncate(0, 0)
                read(plain, 0, np.array(tokens, np.int32), False)
                assert step(plain, [(0, 100)]) == [texts[row]]
                assert np.array_equal(world.engine.logits(row), plain.logits(0)), (
                    f"sequence {seq} of {len(tokens)} tokens"
                )
                tokens.append(100)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("name", "kv_type"),
    [
        *itertools.product(CASES, ["f16", "q8_0"]),
        *itertools.product(["llama", "gemma2", "deepseek2-groups"], ["bf16", "q4_0"]),
    ],
)
def test_random_schedules(name: str, kv_type: str, written: Callable[[Model], str]) -> None:
    check(
        written((MODELS | TYPED)[name]),
        replace(OPTIONS, kv_type=kv_type, deterministic=True),
        random.Random(name + kv_type).randrange(10**6),
    )


@pytest.mark.fuzz
@pytest.mark.parametrize("path", [DRAFT, TARGET, MOE])
def test_random_schedules_of_trained_models(path: str) -> None:
    check(path, replace(OPTIONS, threads=3), 7)


def test_deep_sequences_that_share_their_beginning() -> None:
    """They are deep enough for parts of every size, and for tasks of one part each."""
    options = replace(OPTIONS, n_ctx=4 * 6144, threads=4)
    with (
        closing(GraphEngine(DRAFT, options)) as engine,
        closing(GraphEngine(DRAFT, replace(options, n_seq=1, n_ctx=6144, threads=1, prefill_lanes=1))) as plain,
    ):
        if not has_promise(engine):
            pytest.skip("this processor's kernels leave single rows to ggml")
        tokens = tokens_of(engine, 5300)
        read(engine, 0, tokens, False)
        read(plain, 0, tokens, False)
        for seq, n in ((1, 5300), (2, 4700), (3, 1100)):
            engine.copy_prefix(0, seq, n).step(2**62)
        step(engine, [(0, 70), (1, 71), (2, 72), (3, 73)])
        expected = step(plain, [(0, 70)])
        assert np.array_equal(engine.logits(0), plain.logits(0))
        for seq, n, token in ((1, 5300, 71), (2, 4700, 72), (3, 1100, 73)):
            plain.kv_truncate(0, n)
            step(plain, [(0, token)])
            assert np.array_equal(engine.logits(seq), plain.logits(0))
        assert len(expected) == 1


def test_texts_of_chats_together_are_those_of_each_alone() -> None:
    with closing(GraphEngine(TARGET, OPTIONS)) as engine:
        if not has_promise(engine):
            pytest.skip("this processor's kernels leave single rows to ggml")
        prompts = [tokens_of(engine, 60 + 70 * i, i) for i in range(4)]
        alone = []
        for prompt in prompts:
            engine.kv_truncate(0, 0)
            alone.append(generate(engine, 0, read(engine, 0, prompt), 12))
        engine.kv_truncate(0, 0)
        texts = [[read(engine, seq, prompt)] for seq, prompt in enumerate(prompts)]
        for _ in range(12):
            for text, token in zip(
                texts, step(engine, [(seq, text[-1]) for seq, text in enumerate(texts)]), strict=True
            ):
                text.append(token)
        assert texts == alone


def test_who_asks_for_the_promise_gets_the_engine_that_keeps_it() -> None:
    wanted = replace(SMALL, model=DRAFT, deterministic=True)
    assert choose(DRAFT, replace(wanted, engine="auto", calibrate="off")).engine == "graph"
    with closing(open_engine(replace(wanted, engine="auto"))) as engine:
        assert engine.info.engine == "graph" and engine.info.is_deterministic
    with closing(open_engine(replace(wanted, deterministic=False, engine="llama"))) as plain:
        assert not plain.info.is_deterministic


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "llama"}, "llama.cpp's engine"),
        ({"engine": "auto", "flash_attn": "off"}, "not fused"),
        ({"engine": "auto", "cpu_kernels": False}, "on a CPU"),
        ({"engine": "graph", "cpu_kernels": False}, "on a CPU"),
    ],
)
def test_where_it_cannot_be_kept_nothing_starts(options: dict[str, object], words: str) -> None:
    with pytest.raises(UmaError, match=words) as caught:
        open_engine(replace(SMALL, model=DRAFT, deterministic=True, **options)).close()  # type: ignore[arg-type]
    assert caught.value.error is ErrorCode.CONFIG_INVALID and caught.value.detail["option"] == "engine.deterministic"


def test_weights_that_our_products_cannot_read_where_they_are_break_it(written: Callable[[Model], str]) -> None:
    path = written(TYPED["llama-q5_k"])
    with closing(GraphEngine(path, replace(SMALL, load_mode="mmap"))) as engine:
        assert not engine.info.is_deterministic
    with pytest.raises(UmaError, match=r"attn_k\.weight in its memory layout"):
        GraphEngine(path, replace(SMALL, load_mode="mmap", deterministic=True))
