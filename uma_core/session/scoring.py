"""A prompt whose log probabilities are requested. It is read like an answer whose every next token is known.

All logits of each row are needed, so its tokens are rows of decode calls, like those of a stream, and delay others as
much as a stream does. For the policy, the prompt ends with the token that is computed next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from uma_core.engine.api import Logprobs, Sampler
from uma_core.types import TokenLogprob


class Scoring:
    """Owns the samplers of a call's rows. Each sampler is given the token that follows its row."""

    def __init__(self, tokens: np.ndarray, new_sampler: Callable[[], Sampler], n_told: int) -> None:
        """`tokens`: (n,) int32, the prompt. `n_told`: tokens that have been reported before."""
        self.tokens = tokens
        self.n_told = n_told
        self._new_sampler = new_sampler
        self._samplers: list[Sampler] = []
        self._n_taken = 0
        self.found: list[TokenLogprob] = []  # not reported yet

    def rows(self, n_past: int, n: int) -> Sequence[Sampler]:
        """Return the samplers of n rows from position `n_past` on. The prompt must have a token after the last row."""
        while len(self._samplers) < n:
            self._samplers.append(self._new_sampler())
        for sampler, token in zip(self._samplers, self.tokens[n_past + 1 :], strict=False):
            sampler.force(int(token))
        self._n_taken = 0
        return self._samplers[:n]

    def take(self) -> Logprobs:
        """Return the log probabilities of the next of those rows."""
        found = self._samplers[self._n_taken].logprobs()
        assert found is not None
        self._n_taken += 1
        return found

    def close(self) -> None:
        for sampler in self._samplers:
            sampler.close()
