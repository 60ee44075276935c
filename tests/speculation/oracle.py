"""A source of drafts that knows the answer."""

from __future__ import annotations

import random
from collections.abc import Sequence

from uma_core.session.draft import Draft
from uma_core.types import TokenId


class Oracle:
    """Drafts an answer that is already known, with a wrong token now and then."""

    def __init__(self, answer: Sequence[TokenId], rng: random.Random, error: float, n_vocab: int) -> None:
        self._answer, self._rng, self._error, self._n_vocab = answer, rng, error, n_vocab

    def feed(self) -> bool:
        return True

    def propose(self, generated: Sequence[TokenId], n_most: int, forced: Sequence[TokenId] = ()) -> Draft:
        n = len(generated) + len(forced)
        right = self._answer[n : n + min(n_most, self._rng.randrange(9))]
        tokens = tuple((t + 1) % self._n_vocab if self._rng.random() < self._error else t for t in right)
        return Draft(tokens, tuple(0.99**i for i in range(1, len(tokens) + 1)), "lookup", 8)
