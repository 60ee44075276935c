"""Direct copies of KV are proven at start, or are not made."""

from contextlib import closing

import numpy as np
import pytest

from tests.engine.conftest import DRAFT, MOE, OPTIONS, TARGET
from tests.engine.drive import read
from uma_core.engine.llama.engine import LlamaEngine

PROMPT = "The Debian project is an association of individuals"


def test_direct_kv_is_proven_on_our_models() -> None:
    for path in (TARGET, DRAFT, MOE):
        engine = LlamaEngine(path, OPTIONS)
        assert engine.info.capabilities.n_prefill_slots == 2 and not engine.info.notes
        engine.close()


def test_an_unproven_cache_falls_back_to_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uma_core.engine.llama.engine.proves_direct_kv", lambda engine: False)
    with closing(LlamaEngine(DRAFT, OPTIONS)) as engine:
        assert engine.info.capabilities.n_prefill_slots == 0
        assert any("sized chunks" in note for note in engine.info.notes)
        assert read(engine, 0, np.array(engine.tokenize(PROMPT, True, False), np.int32)) >= 0
