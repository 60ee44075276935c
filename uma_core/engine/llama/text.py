"""The text methods of the Engine contract: all engines here use llama.cpp's vocabulary."""

from __future__ import annotations

from uma_core.engine.api import EngineInfo, ModelFacts
from uma_core.engine.llama.model import LlamaModel
from uma_core.types import TokenId


class TextOfModel:
    """See engine.api.Engine for every method's contract. An engine that inherits from it sets both attributes."""

    info: EngineInfo
    model: LlamaModel

    @property
    def n_vocab(self) -> int:
        return self.info.n_vocab

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[TokenId]:
        return self.model.tokenize(text, add_special, parse_special)

    def piece(self, token: TokenId, unparse_special: bool = False) -> bytes:
        return self.model.piece(token, unparse_special)

    def is_eog(self, token: TokenId) -> bool:
        return token in self.model.eog

    def is_control(self, token: TokenId) -> bool:
        return self.model.is_control(token)

    def chat_template(self) -> str | None:
        return self.model.chat_template

    def special(self, name: str) -> str:
        return self.model.special(name)

    def facts(self) -> ModelFacts:
        return self.model.facts()
