"""A prompt whose tokens' log probabilities are wanted: it is read as an answer is given, with every next token known.

Each row's logits are needed whole, so that its tokens are rows of decode calls, as a stream's are, and cost others what
a stream costs. For the policy the prompt ends with the token that is computed next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from uma_core.engine.api import Logprobs, Sampler
from uma_core.types import TokenLogprob


class Scoring:
    """Owns the samplers of the rows of a call, each of which is told the token that follows its row."""

    def __init__(self, tokens: np.ndarray, new_sampler: Callable[[], Sampler], n_told: int = 0) -> None:
        """`tokens`: (n,) int32, the prompt. `n_told`: tokens that somebody else has reported already."""
        self.tokens = tokens
        self.n_told = n_told
        self._new_sampler = new_sampler
        self._samplers: list[Sampler] = []
        self._n_taken = 0
        self.found: list[TokenLogprob] = []  # not reported yet

    def rows(self, n_past: int, n: int) -> Sequence[Sampler]:
        """Of n rows from position `n_past` on, the last one's next token included in the prompt."""
        while len(self._samplers) < n:
            self._samplers.append(self._new_sampler())
        for sampler, token in zip(self._samplers, self.tokens[n_past + 1 :], strict=False):
            sampler.force(int(token))
        self._n_taken = 0
        return self._samplers[:n]

    def take(self) -> Logprobs:
        """Of the next one of those rows."""
        found = self._samplers[self._n_taken].logprobs()
        assert found is not None
        self._n_taken += 1
        return found

    def close(self) -> None:
        for sampler in self._samplers:
            sampler.close()
