from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.conftest import DRAFT
from uma_core.config.options import EngineOptions
from uma_core.engine.llama.engine import LlamaEngine


@pytest.fixture(scope="session")
def small() -> Iterator[LlamaEngine]:
    """Samplers need a model. The tests' rows do not come from it."""
    engine = LlamaEngine(DRAFT, EngineOptions(n_ctx=256, n_seq=1))
    yield engine
    engine.close()
