"""The engines under test: every conformance test runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests import trained
from uma_core.clock import ManualClock
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Engine
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.models import default_model_path

TARGET = str(default_model_path())
DRAFT, MOE = str(trained.DRAFT), str(trained.MOE)
OPTIONS = EngineOptions(n_ctx=4096, n_seq=4, threads=2, n_batch=256, n_ubatch=256)


LLAMA = ["llama-draft", "llama-moe", "llama-q8kv"]
GRAPH = ["graph-draft", "graph-moe", "graph-q8kv", "stock-draft", "stock-moe", "stock-q8kv"]
SLICED = ["fake", *LLAMA, *GRAPH]  # engines whose prefill can pause and whose KV can be copied
ALL = [*SLICED, "llama-chunked", "llama-unified", "graph-chunked", "graph-unified", "stock-chunked", "stock-unified"]


@pytest.fixture(scope="module", params=ALL)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = {
        "fake": lambda: FakeEngine(FakeModel(n_ctx=4096, n_batch=256, n_ubatch=256), clock=ManualClock()),
        "llama-draft": lambda: LlamaEngine(DRAFT, OPTIONS),
        "llama-moe": lambda: LlamaEngine(MOE, OPTIONS),
        "llama-q8kv": lambda: LlamaEngine(DRAFT, replace(OPTIONS, kv_type="q8_0")),
        "llama-chunked": lambda: LlamaEngine(DRAFT, replace(OPTIONS, prefill_lanes=0)),
        "llama-unified": lambda: LlamaEngine(DRAFT, replace(OPTIONS, kv_mode="unified")),
        "graph-draft": lambda: GraphEngine(DRAFT, OPTIONS),
        "graph-moe": lambda: GraphEngine(MOE, OPTIONS),
        "graph-q8kv": lambda: GraphEngine(DRAFT, replace(OPTIONS, kv_type="q8_0")),
        "graph-chunked": lambda: GraphEngine(DRAFT, replace(OPTIONS, prefill_lanes=0)),
        "graph-unified": lambda: GraphEngine(DRAFT, replace(OPTIONS, kv_mode="unified")),
        "stock-draft": lambda: GraphEngine(DRAFT, replace(OPTIONS, load_mode="none"), is_stock=True),
        "stock-moe": lambda: GraphEngine(MOE, OPTIONS, is_stock=True),
        "stock-q8kv": lambda: GraphEngine(DRAFT, replace(OPTIONS, kv_type="q8_0"), is_stock=True),
        "stock-chunked": lambda: GraphEngine(DRAFT, replace(OPTIONS, prefill_lanes=0), is_stock=True),
        "stock-unified": lambda: GraphEngine(DRAFT, replace(OPTIONS, kv_mode="unified"), is_stock=True),
    }[request.param]()
    yield made
    made.close()


@pytest.fixture
def clean(engine: Engine) -> Iterator[Engine]:
    """The engine with all sequences empty, before the test and after it."""
    with emptied(engine):
        yield engine


@contextmanager
def emptied(engine: Engine) -> Iterator[None]:
    """All sequences are empty, before the block and after it."""
    empty(engine)
    yield
    empty(engine)


def empty(engine: Engine) -> None:
    for seq_id in range(engine.info.n_seq_max):
        engine.prefill_close(seq_id)
        engine.kv_truncate(seq_id, 0)
