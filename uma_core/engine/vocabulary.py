"""A model's text side without its weights, for a process that computes nothing.

It reads text as the engines of the model do.
"""

from __future__ import annotations

from uma_core.config.options import EngineOptions
from uma_core.engine.llama.model import LlamaModel, Parts
from uma_core.types import TokenId


class Vocabulary:
    """Loads vocabulary and chat template: some tens of MB. Raises the same errors as loading a model."""

    def __init__(self, path: str) -> None:
        self._model = model = LlamaModel(path, EngineOptions(model=path), None, Parts.VOCABULARY)
        self.fingerprint = model.fingerprint
        self.n_vocab = model.n_vocab
        self.special = model.special
        self.facts = model.facts

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[TokenId]:
        return self._model.tokenize(text, add_special, parse_special)

    def piece(self, token: TokenId, unparse_special: bool = False) -> bytes:
        return self._model.piece(token, unparse_special)

    def chat_template(self) -> str | None:
        return self._model.chat_template
