"""What engines on llama.cpp's vocabulary have in common: text, samplers, interrupts, the log; for those that generate
also the calls to their decoder and prefill slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from uma_core.engine.api import EngineInfo, ModelFacts, PrefillOutcome, Sampler
from uma_core.engine.lib import ffi
from uma_core.engine.llama.log import tap
from uma_core.engine.llama.model import LlamaModel
from uma_core.engine.llama.sampler import LlamaSampler
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import SamplingParams, SeqId, TokenId

DEFAULT_POOLING = "last"  # for generating models whose file names none: only the last token has seen all the others


class EngineBase:
    """See engine.api.Engine for every method's contract. Subclasses set the attributes."""

    info: EngineInfo
    model: LlamaModel
    _interrupt_flag: Any  # int32_t *; not 0: a prefill pauses at its next piece

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

    # without kept states of recurrent layers: a sequence can be cut back to any position

    def kv_len(self, seq_id: SeqId) -> int:
        raise NotImplementedError

    def resumable(self, seq_id: SeqId, n: int) -> int:
        return min(n, self.kv_len(seq_id))

    def keep_states(self, seq_id: SeqId, positions: Sequence[int]) -> None:
        pass

    def state_bytes(self, seq_id: SeqId, n: int) -> int:
        return 0

    def clear_interrupt(self) -> None:
        self._interrupt_flag[0] = 0

    def interrupt(self) -> None:
        self._interrupt_flag[0] = 1

    def pump_log(self) -> None:
        tap.pump()


class _Decoder(Protocol):
    """The rows with logits of the last decode call."""

    def draw(self, row: int, sampler: Any) -> TokenId: ...

    def logits(self, row: int) -> np.ndarray: ...

    def hidden(self) -> np.ndarray: ...


class _Slot(Protocol):
    """A prefill slot. `seq_id`: of the sequence whose prompt it reads; -1: it is free."""

    seq_id: SeqId

    def run(self, until_ns: int, quantum_ns: int, min_pieces: int) -> PrefillOutcome: ...

    def sample(self, sampler: Any) -> TokenId: ...

    def logits(self) -> np.ndarray: ...

    def hidden(self) -> np.ndarray: ...


SlotT = TypeVar("SlotT", bound=_Slot)


class GeneratorBase(EngineBase, Generic[SlotT]):
    """An engine whose model generates. `decoder` is None only while the engine opens and after `close`."""

    decoder: _Decoder | None
    prefill_slots: list[SlotT]

    def draw(self, row: int, sampler: Sampler | None) -> TokenId:
        assert self.decoder is not None
        return self.decoder.draw(row, _handle(sampler))

    def logits(self, row: int) -> np.ndarray:
        assert self.decoder is not None
        return self.decoder.logits(row)

    def hidden(self) -> np.ndarray:
        assert self.decoder is not None
        return self.decoder.hidden()

    def _slot(self, seq_id: SeqId) -> SlotT | None:
        return next((slot for slot in self.prefill_slots if slot.seq_id == seq_id), None)

    def _busy_slot(self, seq_id: SeqId) -> SlotT:
        slot = self._slot(seq_id)
        assert slot is not None, "no slot serves this sequence"
        return slot

    def prefill_run(self, seq_id: SeqId, until_ns: int, quantum_ns: int, min_pieces: int) -> PrefillOutcome:
        return self._busy_slot(seq_id).run(until_ns, quantum_ns, min_pieces)

    def prefill_sample(self, seq_id: SeqId, sampler: Sampler | None) -> TokenId:
        return self._busy_slot(seq_id).sample(_handle(sampler))

    def prefill_logits(self, seq_id: SeqId) -> np.ndarray:
        return self._busy_slot(seq_id).logits()

    def prefill_hidden(self, seq_id: SeqId) -> np.ndarray:
        return self._busy_slot(seq_id).hidden()

    def encode_open(self, seq_id: SeqId, inputs: Sequence[np.ndarray], pooling: str) -> bool:
        raise UmaError(ErrorCode.UNSUPPORTED, "this engine reads inputs chunk by chunk")

    def encode_result(self, seq_id: SeqId) -> list[np.ndarray]:
        return []


def _handle(sampler: Sampler | None) -> Any:
    """The native sampler; NULL: greedy."""
    return ffi.NULL if sampler is None else sampler.handle  # type: ignore[attr-defined]
