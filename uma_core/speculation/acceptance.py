"""How likely a drafted token is the one that will be drawn, learned from what was drawn.

Pure. A token behind a long match is likelier than one behind a short one, so there is a rate for each source and each
power of two of the match's length. What follows a match is known a token later whether it was drafted or not: the rates
are learned without drafting.
"""

from __future__ import annotations

from collections.abc import Sequence

# What sessions begin with and how fast they learn was chosen by `python -m perf drafts`, which replays recorded texts
# (docs/SPECULATION.md).
PRIOR = (0.0, 0.15, 0.4, 0.6, 0.8, 0.9, 0.95, 0.97)  # parts of the tokens that held, by the bit length of the match
# of a draft model's tokens: 0.42 to 0.52 of four hold with the small pair of the tests
MODEL_PRIOR = (0.5,) * len(PRIOR)
STEP = 0.04  # weight of a session's latest token; 0.02 to 0.08 differ by 0.2 %, 0.16 costs 1 %
GLOBAL_STEP = 0.01  # the same for what new sessions begin with: best log loss, 3 % better than learning nothing


class Acceptance:
    """Rates of one session. `parent`: where a new session's begin; it learns from all of them."""

    def __init__(self, parent: Acceptance | None = None) -> None:
        known = parent._rates if parent is not None else {}
        self._rates: dict[str, list[float]] = {source: list(rates) for source, rates in known.items()}
        self._parent = parent
        self._step = STEP if parent is not None else GLOBAL_STEP

    def rate(self, source: str, n_match: int) -> float:
        """Probability that the token behind a match of n tokens holds."""
        return self._rates.get(source, _prior(source))[_bucket(n_match)]

    def survival(self, source: str, n_match: int, n: int) -> list[float]:
        """Of n drafted tokens: probability that it and all before it hold. Each that holds makes the match longer."""
        product, out = 1.0, []
        for i in range(n):
            product *= self.rate(source, n_match + i)
            out.append(product)
        return out

    def observe(self, source: str, n_match: int, drafts: Sequence[int], drawn: Sequence[int]) -> None:
        """`drafts` were proposed, and these tokens drawn: tells of each draft up to the first that did not hold."""
        for i, (draft, token) in enumerate(zip(drafts, drawn, strict=False)):
            self._learn(source, n_match + i, draft == token)
            if draft != token:
                return

    def _learn(self, source: str, n_match: int, is_right: bool) -> None:
        rates = self._rates.setdefault(source, list(_prior(source)))
        bucket = _bucket(n_match)
        rates[bucket] += self._step * (is_right - rates[bucket])
        if self._parent is not None:
            self._parent._learn(source, n_match, is_right)


def _prior(source: str) -> tuple[float, ...]:
    return MODEL_PRIOR if source == "draft" else PRIOR


def _bucket(n_match: int) -> int:
    return min(n_match.bit_length(), len(PRIOR) - 1)
