"""What a model computes for one text may be no number. Other texts, beside it and after it, get what they get alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.engine.drive import read
from tests.engine.graph.models import MODELS, write
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch, Engine
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.llama.engine import LlamaEngine

BAD = 5  # its embedding is NaN
GOOD = list(range(20, 40))
ENGINES: dict[str, tuple[Callable[..., Engine], dict[str, Any]]] = {
    "graph": (GraphEngine, {}),
    "graph, as on a GPU": (lambda path, options: GraphEngine(path, options, is_stock=True), {}),
    "llama": (LlamaEngine, {}),
    "llama, without slots": (LlamaEngine, {"prefill_lanes": 0}),
    "llama, unified": (LlamaEngine, {"kv_mode": "unified"}),
}


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    path = tmp_path / "model.gguf"
    write(replace(MODELS["llama"], quant="f32"), path)
    reader = gguf.GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight").data[BAD] = np.nan
    reader.data.flush()
    make, options = request.param
    small = EngineOptions(threads=1, n_seq=2, n_ctx=512, n_batch=64, n_ubatch=64, calibrate="off")
    made = make(str(path), replace(small, **options))
    yield made
    made.close()


def answer(engine: Engine, seq_id: int, tokens: list[int]) -> list[int]:
    engine.kv_truncate(seq_id, 0)
    said = [read(engine, seq_id, np.array(tokens, np.int32))]
    while len(said) < 6:
        batch = Batch(1)
        batch.add(max(said[-1], 0), engine.kv_len(seq_id), seq_id, True)
        said += engine.decode(batch, [None]).tokens
    return said


def test_a_text_that_is_no_number_changes_no_other(engine: Engine) -> None:
    expected = answer(engine, 0, GOOD)
    assert min(expected) >= 0
    engine.kv_truncate(0, 0)
    assert answer(engine, 1, [*GOOD[:6], BAD, *GOOD * 4]) == [-1] * 6
    assert answer(engine, 0, GOOD) == expected, "beside it"
    assert answer(engine, 1, GOOD) == expected, "after it, in its place"
