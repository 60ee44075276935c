"""What every engine counts when it has no cells for a request. The daemon's alert, the soak and the bench read that
count.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from tests.engine.conftest import DRAFT, OPTIONS
from tests.engine.drive import read, tokens_of
from uma_core.engine.api import Batch, DecodeStatus, Engine
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.errors import ErrorCode, UmaError

SMALL = replace(OPTIONS, n_ctx=512, n_seq=2, n_batch=64, n_ubatch=64)
POOL = replace(SMALL, kv_mode="unified")


@pytest.mark.parametrize(
    "kind, options", [(LlamaEngine, SMALL), (LlamaEngine, POOL), (GraphEngine, SMALL), (GraphEngine, POOL)]
)
def test_a_batch_without_cells_is_counted(kind: type[Engine], options: object) -> None:
    with closing(kind(DRAFT, options)) as engine:  # type: ignore[call-arg]
        n = engine.info.n_ctx_seq
        before = engine.slot_warnings()
        read(engine, 0, tokens_of(engine, n))
        assert engine.slot_warnings() == before, "there was room for these"
        batch = Batch(1)
        batch.add(1, n, 0, True)
        assert engine.decode(batch, [None]).status is DecodeStatus.FULL
        assert engine.slot_warnings() == before + 1


def test_a_chunk_without_pages_is_counted() -> None:
    with closing(GraphEngine(DRAFT, SMALL)) as engine:
        before = engine.slot_warnings()
        taken, engine._pages._free[:] = engine._pages._free[:], []
        with pytest.raises(UmaError) as caught:
            engine.prefill_open(0, tokens_of(engine, 64), False)
        assert caught.value.error is ErrorCode.KV_FULL and engine.slot_warnings() == before + 1
        engine._pages._free[:] = taken
        assert engine.prefill_open(0, tokens_of(engine, 64), False)
