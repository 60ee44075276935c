"""Both engines on one model, and a folder for small random models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from tests.engine.conftest import DRAFT, OPTIONS, emptied
from tests.engine.graph.models import Model, write
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.llama.engine import LlamaEngine

SMALL = replace(OPTIONS, n_ctx=1024)
Pair = Callable[[str, EngineOptions], tuple[GraphEngine, LlamaEngine]]


@pytest.fixture(params=[False, True], ids=["ours", "stock"])
def is_stock(request: pytest.FixtureRequest) -> bool:
    """Whether the graph engine computes only with ggml's own operations, as on a GPU."""
    return bool(request.param)


@pytest.fixture
def pair(is_stock: bool) -> Iterator[Pair]:
    """Opens (graph engine, llama engine) on a path with the same options, and closes both."""
    with ExitStack() as stack:

        def open_both(path: str, options: EngineOptions) -> tuple[GraphEngine, LlamaEngine]:
            graph = stack.enter_context(closing(GraphEngine(path, options, is_stock=is_stock)))
            return graph, stack.enter_context(closing(LlamaEngine(path, options)))

        yield open_both


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Model], str]:
    """Writes a model, once, and returns its path. No test changes the file."""
    folder = tmp_path_factory.mktemp("models")
    paths: dict[str, str] = {}

    def make(model: Model) -> str:
        key = repr(model)
        if key not in paths:
            paths[key] = write(model, folder / f"{len(paths)}.gguf")
        return paths[key]

    return make


@pytest.fixture(scope="module", params=[False, True], ids=["ours", "stock"])
def opened(request: pytest.FixtureRequest) -> Iterator[GraphEngine]:
    made = GraphEngine(DRAFT, SMALL, is_stock=request.param)
    yield made
    made.close()


@pytest.fixture
def engine(opened: GraphEngine) -> Iterator[GraphEngine]:
    with emptied(opened):
        yield opened


def batch_of(*rows: tuple[int, int, int]) -> Batch:
    batch = Batch(SMALL.n_batch)
    for token, pos, seq_id in rows:
        batch.add(token, pos, seq_id, True)
    return batch
