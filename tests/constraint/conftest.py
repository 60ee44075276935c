from __future__ import annotations

from collections.abc import Iterator

import pytest

from uma_core.config.options import EngineOptions
from uma_core.constraint.compiler import Compiler
from uma_core.engine.fake.engine import FakeEngine
from uma_core.engine.llama.model import LlamaModel, Parts
from uma_core.metrics.catalog import new_registry
from uma_core.models import default_model_path
from uma_core.types import TokenId


class Vocab:
    """The text side of a model without its weights."""

    def __init__(self, path: str) -> None:
        self.model = LlamaModel(path, EngineOptions(), None, Parts.VOCABULARY)
        self.n_vocab = self.model.n_vocab
        self.tokenize = self.model.tokenize
        self.is_control = self.model.is_control

    def piece(self, token: TokenId, unparse_special: bool = False) -> bytes:
        return self.model.piece(token, unparse_special)

    def is_eog(self, token: TokenId) -> bool:
        return token in self.model.eog


@pytest.fixture(scope="session")
def fake() -> FakeEngine:
    """One token per byte."""
    return FakeEngine()


@pytest.fixture(scope="session")
def tiny() -> Iterator[Vocab]:
    """The embedded model's 8192 tokens."""
    vocab = Vocab(str(default_model_path()))
    yield vocab
    vocab.model.close()


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return Compiler(new_registry())
