"""What engines on llama.cpp's vocabulary do alike: text, samplers, interrupts, the log."""

from __future__ import annotations

from typing import Any

from uma_core.engine.api import EngineInfo, ModelFacts, Sampler
from uma_core.engine.llama.log import tap
from uma_core.engine.llama.model import LlamaModel
from uma_core.engine.llama.sampler import LlamaSampler
from uma_core.types import SamplingParams, TokenId


class EngineBase:
    """See engine.api.Engine for every method's contract. An engine that inherits from it sets the attributes."""

    info: EngineInfo
    model: LlamaModel
    _bell: Any  # int32_t *; not 0: a prefill pauses at its next piece

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

    def sampler(self, params: SamplingParams, seed: int) -> Sampler:
        return LlamaSampler(params, seed, self.model, self.info.n_ctx_seq)

    def prepare(self, params: SamplingParams) -> None:
        self.model.links.prepare(params, self.info.n_ctx_seq)

    def hush(self) -> None:
        self._bell[0] = 0

    def ring(self) -> None:
        self._bell[0] = 1

    def pump_log(self) -> None:
        tap.pump()
