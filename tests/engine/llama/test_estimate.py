"""The estimate of a model's memory in llama.cpp's engine."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.conftest import OPTIONS
from tests.engine.graph.models import MODELS, RECURRENT, write
from uma_core.engine.llama import estimate as module
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.engine.llama.estimate import estimate, sizes
from uma_core.engine.llama.log import Line

MIB = 1 << 20


@pytest.mark.parametrize("name", ["qwen35", "lfm2", "gemma2"])
def test_no_memory_is_asked_for_slots_that_a_model_never_gets(name: str, tmp_path: Path) -> None:
    """Two slots' contexts were counted, half as much KV again: models that fit were refused."""
    path = write((MODELS | RECURRENT)[name], tmp_path / "model.gguf")
    options = replace(OPTIONS, threads=1, prefill_lanes=2)
    with closing(LlamaEngine(path, options)) as engine:
        assert not engine.prefill_slots
        assert estimate(path, options) == engine.memory()


def test_sizes_in_the_log_are_added() -> None:
    texts = (
        "llama_kv_cache: size = 12.50 MiB (256 cells, 4 layers)",
        "llama_memory_recurrent: size =    1.00 MiB",
        "llama_kv_cache: 4 layers",
        "sched_reserve:        CPU compute buffer size =    2.25 MiB",
        "sched_reserve:      CUDA0 compute buffer size =  100.00 MiB",
    )
    lines = [Line(i, 2, text) for i, text in enumerate(texts)]
    assert sizes(lines, module._KV_SIZE) == int(13.5 * MIB)
    assert sizes(lines, module._COMPUTE_SIZE) == int(102.25 * MIB)
    assert sizes([], module._KV_SIZE) == 0
