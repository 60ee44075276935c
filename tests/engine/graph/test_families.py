"""Every architecture family, compared with llama.cpp on small random models: the same logits up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.engine.drive import read, read_plain, step, tokens_of
from tests.engine.graph.conftest import SMALL, Pair
from tests.engine.graph.models import MODELS, Model
from uma_core.engine.api import Engine
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.llama.engine import LlamaEngine

TOLERANCE = 0.02  # in standard deviations of the logits; a wrong bias, norm or rotation moves them by about 1
ROUNDING = 0.05  # the same, root mean square: with other kernels it is 0.02 to 0.03 here and on the trained models


@pytest.fixture(scope="module")
def of_llama(written: Callable[[Model], str]) -> Callable[[str], list[np.ndarray]]:
    """Computes a family's rows with llama.cpp's engine, once."""

    @cache
    def make(name: str) -> list[np.ndarray]:
        with closing(LlamaEngine(written(MODELS[name]), SMALL)) as engine:
            return rows_of(engine)

    return make


def rows_of(engine: Engine) -> list[np.ndarray]:
    """Return the logits after prompts that are read in both ways, for a sequence alone and for two together."""
    prompt, rows = tokens_of(engine, 70), []
    read(engine, 0, prompt)
    read_plain(engine, 1, prompt[:33])
    for batch in ([(0, 40)], [(0, 41), (1, 42)]):
        step(engine, batch)
        rows += [engine.logits(i).copy() for i in range(len(batch))]
    return rows


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_llama_cpps(
    name: str, is_stock: bool, written: Callable[[Model], str], of_llama: Callable[[str], list[np.ndarray]]
) -> None:
    expected = of_llama(name)
    with closing(GraphEngine(written(MODELS[name]), SMALL, is_stock=is_stock)) as engine:
        for ours, theirs in zip(rows_of(engine), expected, strict=True):
            assert np.abs(ours - theirs).max() < TOLERANCE * theirs.std()


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
@pytest.mark.parametrize("window", [1, 64, 65, 100, 200])
def test_windows_that_end_anywhere_in_a_page(
    name: str, window: int, pair: Pair, written: Callable[[Model], str]
) -> None:
    model = MODELS[name]
    graph, llama = pair(written(replace(model, meta=model.meta | {"attention.sliding_window": window})), SMALL)
    prompt = tokens_of(graph, 220)
    for engine in (graph, llama):
        read(engine, 0, prompt)
        read_plain(engine, 1, prompt[:90])
        step(engine, [(0, 40), (1, 41)])
    for i in range(2):
        ours, theirs = graph.logits(i), llama.logits(i)
        assert np.abs(ours - theirs).max() < TOLERANCE * theirs.std()


def check_changed(name: str, meta: dict[str, Any], pair: Pair, written: Callable[[Model], str]) -> None:
    """Check that with this metadata, in addition to the family's own, the logits are llama.cpp's."""
    graph, llama = pair(written(replace(MODELS[name], meta=MODELS[name].meta | meta)), SMALL)
    for engine in (graph, llama):
        read(engine, 0, tokens_of(engine, 70))
        step(engine, [(0, 40)])
    ours, theirs = graph.logits(0), llama.logits(0)
    assert np.abs(ours - theirs).max() < TOLERANCE * theirs.std()


@pytest.mark.parametrize(
    ("name", "meta"),
    [
        ("gpt-oss", {"rope.scaling.original_context_length": 0}),  # 0 means the trained length
        ("mistral3", {"rope.scaling.factor": 0.0}),  # 0 means 1
    ],
)
def test_a_scaling_of_zero_counts_as_none_given(
    name: str, meta: dict[str, float], pair: Pair, written: Callable[[Model], str]
) -> None:
    check_changed(name, meta, pair, written)


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss"])
def test_windowed_layers_are_scaled_even_where_the_others_are_not(
    name: str, pair: Pair, written: Callable[[Model], str]
) -> None:
    """As in llama.cpp: the kind of scaling counts only for layers without a window."""
    check_changed(name, {"rope.scaling.type": "none", "rope.scaling.factor": 0.5}, pair, written)


KV_ROUNDING = {"bf16": 0.06, "q8_0": 0.08, "q4_0": 0.3}  # distance from f16, rms; llama.cpp's engine moves as far


@pytest.mark.parametrize("kv_type", KV_ROUNDING)
@pytest.mark.parametrize("name", ["qwen3", "deepseek2"])
def test_other_kv_types_are_near_f16(name: str, kv_type: str, is_stock: bool, written: Callable[[Model], str]) -> None:
    path, logits = written(MODELS[name]), []
    for each in ("f16", kv_type):
        engine = GraphEngine(path, replace(SMALL, kv_type=each), is_stock=is_stock)
        read(engine, 0, tokens_of(engine, 150))
        step(engine, [(0, 50)])
        logits.append(engine.logits(0).copy())
        engine.close()
    moved = np.sqrt(np.mean((logits[1] - logits[0]) ** 2)) / logits[0].std()
    assert 0 < moved < KV_ROUNDING[kv_type]


@pytest.mark.parametrize("kv_type", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("is_ours", [False, True])
def test_with_either_kernels_and_kv_type(
    kv_type: str, is_ours: bool, pair: Pair, written: Callable[[Model], str]
) -> None:
    """Only as close as rounding allows: ggml's attention rounds its queries, and llama.cpp rotates values that it
    stores as q8_0.
    """
    graph, llama = pair(written(MODELS["qwen3"]), replace(SMALL, kv_type=kv_type, cpu_kernels=is_ours))
    prompt = tokens_of(graph, 150)
    for engine in (graph, llama):
        read(engine, 2, prompt)
        step(engine, [(2, 50)])
    ours, theirs = graph.logits(0), llama.logits(0)
    assert np.sqrt(np.mean((ours - theirs) ** 2)) < ROUNDING * theirs.std()
