"""Draft tokens from a small model, which reads the text so far in its own context and predicts the next tokens.

Rules: compute thread only. The policy decides when it drafts and for how long, because drafting lengthens the
streams' step.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from uma_core.clock import Clock
from uma_core.engine.api import Batch, DecodeStatus, Engine, MemoryUse
from uma_core.session.draft import NO_DRAFT, Agreement, Draft
from uma_core.speculation.acceptance import Acceptance
from uma_core.types import SeqId, TokenId

log = logging.getLogger(__name__)

MODEL = "draft"
N_READ = 64  # tokens to read per call; larger calls cost as much per row
N_TIMED = 3  # timed calls of each kind; the fastest counts
# If nothing was drafted for this many times the duration of a token, that duration is measured again: other work may
# have slowed the earlier calls, and a model that seems too slow is never asked. Probes thus take at most 1/200 of the
# time. Not tuned.
DOUBTED_AFTER = 200
GAIN = 0.1  # weight of the latest call in a known duration, which adapts to a new speed within some twenty calls


class Sizes(NamedTuple):
    """Sizes of a drafter's context."""

    n_seq: int
    n_vocab: int  # tokens that both models know
    n_batch: int
    n_ctx_seq: int


class Drafter(ABC):
    """Computes drafts for as many sessions at a time as it has sequences, and knows how long they take."""

    reads_states = False  # whether it reads hidden states of the model that verifies too: see `ModelSource.see`

    def __init__(self, name: str, sizes: Sizes, clock: Clock) -> None:
        self.name = name
        self.n_ctx_seq = sizes.n_ctx_seq
        self.n_vocab = sizes.n_vocab
        self.clock = clock
        self._free: list[SeqId] = list(range(sizes.n_seq))
        self._n_read = min(N_READ, sizes.n_batch, sizes.n_ctx_seq // 2)
        self.token_ns, self.read_ns = self._time(1), max(1, self._time(self._n_read) // self._n_read)
        self._t_drafted_ns = clock.now_ns()
        self.is_broken = False

    def _time(self, n: int) -> int:
        times = []
        for _ in range(N_TIMED):
            t0 = self.clock.now_ns()
            self._compute(0, np.zeros(n, np.int32), 0, None)
            times.append(self.clock.now_ns() - t0)
            self.truncate(0, 0)
        return max(1, min(times))

    def open(self, given: np.ndarray, rates: Acceptance) -> ModelSource | None:
        """Return the draft source of a session with this prompt; None: all sequences are taken."""
        if not self._free or self.is_broken:
            return None
        seq_id = self._free.pop()
        if self.clock.now_ns() - self._t_drafted_ns > DOUBTED_AFTER * self.token_ns:
            self._probe(seq_id)
        return self._new_source(seq_id, given, rates)

    def _probe(self, seq_id: SeqId) -> None:
        """Time one token again, in an empty sequence. The faster time counts, because other work can only make a call
        slower.
        """
        t0 = self.clock.now_ns()
        token = self._compute(seq_id, np.zeros(1, np.int32), 0, None)
        self._t_drafted_ns = self.clock.now_ns()
        if token >= 0:
            self.token_ns = max(1, min(self.token_ns, self._t_drafted_ns - t0))
        self.truncate(seq_id, 0)

    def _new_source(self, seq_id: SeqId, given: np.ndarray, rates: Acceptance) -> ModelSource:
        return ModelSource(self, seq_id, given, rates)

    def release(self, seq_id: SeqId) -> None:
        self.truncate(seq_id, 0)
        self._free.append(seq_id)

    def compute(self, seq_id: SeqId, tokens: np.ndarray, pos0: int, states: np.ndarray | None = None) -> TokenId:
        """Read (n,) int32 tokens at these positions. Returns the predicted next token, -1 if there is none.

        `states`: (n, n_embd) float32, which prediction heads read along with the tokens.
        """
        t0 = self.clock.now_ns()
        token = self._compute(seq_id, tokens, pos0, states)
        now = self.clock.now_ns()
        n, ns = len(tokens), now - t0
        if token < 0:  # the call was aborted
            return token
        if n == 1:
            self.token_ns = max(1, self.token_ns + int(GAIN * (ns - self.token_ns)))
            self._t_drafted_ns = now
        if n == self._n_read:
            self.read_ns = max(1, self.read_ns + int(GAIN * (ns / n - self.read_ns)))
        else:  # longer calls take no more time per token
            self.read_ns = max(1, min(self.read_ns, ns // n))
        return token

    def fail(self, why: str) -> None:
        log.error("%s failed to draft (%s) and is no longer used", self.name, why)
        self.is_broken = True

    def knows(self, token: TokenId) -> bool:
        return 0 <= token < self.n_vocab

    def n_fitting(self, ns: int) -> int:
        """Return how many tokens can be read in one call in that time; 0: none."""
        return min(self._n_read, max(1, ns // self.read_ns)) if ns >= self.token_ns else 0

    @abstractmethod
    def _compute(self, seq_id: SeqId, tokens: np.ndarray, pos0: int, states: np.ndarray | None) -> TokenId: ...

    @abstractmethod
    def truncate(self, seq_id: SeqId, n: int) -> None:
        """Drop the sequence's positions from n on."""

    @abstractmethod
    def memory(self) -> MemoryUse: ...

    @abstractmethod
    def close(self) -> None: ...


class DraftModel(Drafter):
    """Drafts with a separate model, whose engine it owns."""

    def __init__(self, engine: Engine, n_vocab: int, clock: Clock) -> None:
        """`n_vocab`: vocabulary size of the model that verifies."""
        info = engine.info
        self.engine = engine
        self._batch = Batch(info.n_batch)
        sizes = Sizes(info.n_seq_max, min(n_vocab, info.n_vocab), info.n_batch, info.n_ctx_seq)
        super().__init__(info.model_name, sizes, clock)

    def _compute(self, seq_id: SeqId, tokens: np.ndarray, pos0: int, states: np.ndarray | None) -> TokenId:
        batch = self._batch
        batch.clear()
        batch.starts_next, batch.wake_fd = False, -1
        batch.extend(tokens, pos0, seq_id, True)
        outcome = self.engine.decode(batch, [None])
        if outcome.status is DecodeStatus.OK:
            return outcome.tokens[0]
        if outcome.status is not DecodeStatus.ABORTED:  # an abort is meant for the model that verifies
            self.fail(outcome.status.name)
        self.truncate(seq_id, pos0)
        return -1

    def truncate(self, seq_id: SeqId, n: int) -> None:
        self.engine.kv_truncate(seq_id, n)

    def memory(self) -> MemoryUse:
        return self.engine.memory()

    def close(self) -> None:
        self.engine.close()


class ModelSource:
    """A draft model as the draft source of one session. `given`: (n,) int32, its prompt; borrowed."""

    N_SKIPPED = 32  # retry a model that did not pay after this many tokens: its drafts may have become likelier

    def __init__(self, model: Drafter, seq_id: SeqId, given: np.ndarray, rates: Acceptance) -> None:
        self._model = model
        self._seq_id = seq_id
        self._given = given
        self._rates = rates
        self._n_kv = 0  # positions of the text that the model has computed
        self._n_known = 0  # generated tokens passed to it so far
        self._n_tried = 0  # `_n_known` at its last draft
        self._drafted: list[TokenId] = []  # draft tokens after `_n_known`
        self._is_over = False  # the text is too long for its context, or has tokens that it does not know

    def see(self, pos: int, states: np.ndarray) -> None:
        """Take the verifying model's last hidden states of the positions from `pos` on: (n, n_embd) float32."""

    def draft(self, generated: Sequence[TokenId]) -> Draft:
        """Return its draft tokens, if they still follow the answer so far. Learns from the tokens drawn since."""
        new = generated[self._n_known :]
        if new and self._drafted:
            self._rates.observe(self._draft(), new)
            n_right = next(
                (i for i, pair in enumerate(zip(self._drafted, new, strict=False)) if pair[0] != pair[1]), None
            )
            n_right = min(len(new), len(self._drafted)) if n_right is None else n_right
            self._drafted = self._drafted[n_right:] if n_right == len(new) else []
            n_kept = len(self._given) + self._n_known + n_right
            if self._n_kv > n_kept:
                self._model.truncate(self._seq_id, n_kept)
                self._n_kv = n_kept
        self._n_known = len(generated)
        return self._draft() if self._drafted else NO_DRAFT

    def _draft(self) -> Draft:
        n = len(self._drafted)
        return Draft(tuple(self._drafted), self._survival(n), MODEL, 1, (Agreement.ONE,) * n)

    def _survival(self, n: int) -> tuple[float, ...]:
        return tuple(self._rates.survival(MODEL, 1, (Agreement.ONE,) * n))

    @property
    def is_over(self) -> bool:
        """Whether it drafts nothing more for this text."""
        return self._is_over or len(self._given) + self._n_known + 1 >= self._model.n_ctx_seq

    def rates(self, n_most: int) -> tuple[float, ...]:
        """Return, for each token that it would draft now, the probability that it is drawn; () if it cannot draft."""
        if self._is_over or self._model.is_broken:
            return ()
        n_most = min(n_most, self._model.n_ctx_seq - len(self._given) - self._n_known - 1)
        if self._n_known - self._n_tried >= self.N_SKIPPED:
            return (1.0,)[: max(0, n_most)]
        return self._survival(n_most)

    def run(self, generated: Sequence[TokenId], n: int, ns: int) -> None:
        """Draft n tokens after the answer so far. If reading the text takes longer than `ns`, only read."""
        model = self._model
        until = model.clock.now_ns() + ns
        self.draft(generated)
        self._drafted = []
        n_text = len(self._given) + len(generated)
        if n_text + n >= model.n_ctx_seq:
            self._is_over = True
            return
        if self._n_kv >= n_text:  # an earlier draft has read the last token, and its prediction is gone
            self._n_kv = n_text - 1
            model.truncate(self._seq_id, self._n_kv)
        token = -1
        while self._n_kv < n_text:
            k = min(n_text - self._n_kv, model.n_fitting(until - model.clock.now_ns()))
            if k <= 0 or not self._read(self._part(generated, k)):
                return
            token = self._token
        self._n_tried = len(generated)
        while model.knows(token):
            self._drafted.append(token)
            if len(self._drafted) == n or not self._read(np.array([token], np.int32)):
                return
            token = self._token

    def _part(self, generated: Sequence[TokenId], k: int) -> np.ndarray:
        """Return the next k tokens to read."""
        n_given = len(self._given)
        head = self._given[self._n_kv : self._n_kv + k]
        tail = generated[max(0, self._n_kv - n_given) : max(0, self._n_kv + k - n_given)]
        return np.concatenate([head, np.array(tail, np.int32)]) if tail else head

    def _read(self, tokens: np.ndarray) -> bool:
        if tokens.max() >= self._model.n_vocab:
            self._is_over = True
            return False
        self._token = self._compute(tokens)
        if self._token < 0:
            return False
        self._n_kv += len(tokens)
        return True

    def _compute(self, tokens: np.ndarray) -> TokenId:
        return self._model.compute(self._seq_id, tokens, self._n_kv)

    def close(self) -> None:
        self._model.release(self._seq_id)
