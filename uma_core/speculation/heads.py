"""Draft tokens of a model's own prediction heads (MTP). From a token and the hidden state of the position before it,
the heads predict the next token. From that token and the heads' own new state they predict the one after it.

Rules: those of model.py. The rows of a draft leave KV in the heads' memory that was computed from the heads' own
states. This KV is dropped after drafting, and the same positions are read again with states of the model that verifies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from uma_core.clock import Clock
from uma_core.engine.api import DecodeStatus, Heads, MemoryUse
from uma_core.speculation.acceptance import Acceptance
from uma_core.speculation.model import Drafter, ModelSource, Sizes
from uma_core.types import SeqId, TokenId

# Most hidden states of a text that may wait to be read: those of its latest positions, 8 MB with 2,048 floats each. The
# heads see only the end of a longer prompt: their single attention layer begins there. Not tuned.
N_STATES = 1024


class HeadModel(Drafter):
    """Drafts with prediction heads, which it owns."""

    reads_states = True

    def __init__(self, heads: Heads, clock: Clock) -> None:
        self.heads = heads
        super().__init__(heads.name, Sizes(heads.n_seq, heads.n_vocab, heads.n_batch, heads.n_ctx_seq), clock)

    def _new_source(self, seq_id: SeqId, given: np.ndarray, rates: Acceptance) -> ModelSource:
        return HeadSource(self, seq_id, given, rates)

    def _compute(self, seq_id: SeqId, tokens: np.ndarray, pos0: int, states: np.ndarray | None) -> TokenId:
        if states is None:  # a call that only measures time
            states = np.zeros((len(tokens), self.heads.n_embd), np.float32)
        rc, token = self.heads.read(seq_id, tokens, pos0, states)
        if rc:
            if rc != DecodeStatus.FULL:  # cells become free again when other sessions end
                self.fail(f"llama_decode gave {rc}")
            self.truncate(seq_id, pos0)
        return token

    def truncate(self, seq_id: SeqId, n: int) -> None:
        self.heads.truncate(seq_id, n)

    def memory(self) -> MemoryUse:
        return self.heads.memory()

    def close(self) -> None:
        self.heads.close()


class HeadSource(ModelSource):
    """Prediction heads as the draft source of one session."""

    def __init__(self, model: HeadModel, seq_id: SeqId, given: np.ndarray, rates: Acceptance) -> None:
        super().__init__(model, seq_id, given, rates)
        self._heads = model.heads
        self._states: deque[np.ndarray] = deque(maxlen=N_STATES)  # (n_embd,) each, for consecutive positions
        self._end = 0  # the position after the last of them

    @property
    def _begin(self) -> int:
        return self._end - len(self._states)

    def see(self, pos: int, states: np.ndarray) -> None:
        if self._begin <= pos < self._end:  # drafts were rejected, or text was taken back
            for _ in range(self._end - pos):
                self._states.pop()
        elif pos != self._end:
            self._states.clear()
        self._states.extend(states)
        self._end = pos + len(states)
        self._cut(pos + 1)  # the row at pos + 1 was read with another state

    def _cut(self, n: int) -> None:
        if self._n_kv > n:
            self._model.truncate(self._seq_id, n)
            self._n_kv = n

    def run(self, generated: Sequence[TokenId], n: int, ns: int) -> None:
        n_text = len(self._given) + len(generated)
        if self._end < n_text - 1 or self._begin >= n_text - 1:  # the last token's state is missing
            return
        if self._n_kv <= self._begin:  # the states before `_begin` are missing
            self._model.truncate(self._seq_id, 0)
            self._n_kv = self._begin + 1
        super().run(generated, n, ns)
        self._cut(n_text)
        while self._begin < self._n_kv - 1:  # drop the states that have been read
            self._states.popleft()

    def _compute(self, tokens: np.ndarray) -> TokenId:
        first = self._n_kv - 1 - self._begin
        if first + len(tokens) <= len(self._states) and not self._drafted:
            states = np.stack([self._states[i] for i in range(first, first + len(tokens))])
        else:
            states = self._heads.state[np.newaxis].copy()
        return self._model.compute(self._seq_id, tokens, self._n_kv, states)
