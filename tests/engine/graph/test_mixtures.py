"""Random mixtures of an executor's calls, compared with the same tokens read at once by an engine of the same kind:
with ggml's own operations, and models with recurrent layers. test_deterministic.py compares our kernels in this way.

llama.cpp's engine is not a reference here: if two experts are nearly equal it may choose the other one, and timing
decides which tokens meet such a router. test_families.py and test_against_llama.py compare with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from tests.engine.conftest import DRAFT, OPTIONS, TARGET
from tests.engine.drive import read, step
from tests.engine.graph.models import MODELS, RECURRENT, Model
from tests.engine.graph.world import StateWorld, World
from uma_core.engine.graph.engine import GraphEngine

# In standard deviations of the logits, for ggml's kernels: batches of other shapes round differently (0.09 was
# seen). Our kernels give the same bits.
TOLERANCE = 0.15
# Share of comparisons within that, for a mixture of experts with ggml's kernels. Where two experts are nearly
# equal, rounding chooses (1.27 was seen, in 1 of 40 runs of one model), and a sequence that met it differs until it
# ends.
MOST = 2 / 3
SEEDS = range(40 if os.environ.get("UMA_FUZZ") == "full" else 4)


@pytest.mark.fuzz
@pytest.mark.parametrize("path", [DRAFT, TARGET])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_sequence_continues_as_if_read_at_once(path: str, seed: int) -> None:
    check(path, seed, is_stock=True)


@pytest.mark.parametrize(
    "name",
    [
        *("phi3", "mistral3", "gpt-oss", "granitemoe-shared", "gemma3", "gemma4-small", "gemma4-experts"),
        *("deepseek2", "deepseek2-groups", "deepseek2-heads", "glm4moe", "olmo2-windows", "cohere2"),
    ],
)
def test_so_it_does_in_families_with_more(name: str, written: Callable[[Model], str]) -> None:
    check(written(replace(MODELS[name], quant="f16")), 1, is_stock=True)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["qwen35", "qwen35-last", "qwen35moe", "granitehybrid", "lfm2"])
def test_so_it_does_with_states(name: str, seed: int, written: Callable[[Model], str]) -> None:
    check(written(replace(RECURRENT[name], quant="f16")), seed, is_stock=False, kind=StateWorld)


def check(path: str, seed: int, is_stock: bool, kind: type[World] = World) -> None:
    world = kind(path, seed, is_stock)
    is_near: list[bool] = []
    with closing(world.engine), closing(GraphEngine(path, OPTIONS, is_stock=is_stock)) as plain:
        for _ in range(3):
            world.live(25)
            for seq, tokens in enumerate(world.tokens):
                if tokens and len(tokens) < world.engine.info.n_ctx_seq:
                    step(world.engine, [(seq, 100)])
                    plain.kv_truncate(0, 0)
                    read(plain, 0, np.array(tokens, np.int32), False)
                    step(plain, [(0, 100)])
                    theirs = plain.logits(0)
                    ours = world.engine.logits(0)
                    if is_stock:
                        is_near.append(np.abs(ours - theirs).max() <= TOLERANCE * theirs.std())
                    else:
                        assert np.array_equal(ours, theirs)
                    tokens.append(100)
        assert sum(is_near) >= (MOST if plain.info.n_expert else 1) * len(is_near)
