"""Estimates how likely a draft token is to be drawn. The rates are learned from drawn tokens.

Pure. A token after a long match is likelier to be accepted than one after a short match, and one that followed the
match twice is likelier than one that followed it once. If another token followed the match before, few are accepted. So
there is a rate for each source, each power of two of the match's length, and each agreement of its two latest places.
Which token follows a match is known one token later, drafted or not, so rates are learned without drafting too.
"""

from __future__ import annotations

from collections.abc import Sequence

from uma_core.session.draft import Agreement, Draft

# The initial rates and the learning rate were chosen with `python -m perf drafts`, which replays recorded texts
# (docs/SPECULATION.md).
PRIOR = {  # share of tokens that were accepted, by the bit length of the match
    Agreement.ONE: (0.0, 0.28, 0.6, 0.85, 0.9, 0.95, 0.97, 0.98),
    Agreement.SAME: (0.0, 0.55, 0.88, 0.92, 0.93, 0.95, 0.97, 0.98),
    Agreement.DIFFERENT: (0.0, 0.1, 0.1, 0.15, 0.15, 0.2, 0.2, 0.2),
}
N_BUCKETS = 8  # longer matches share the last one
# the same for tokens of a draft model: of four, 0.42 to 0.52 are accepted with the small pair of the tests
MODEL_PRIOR = (0.5,) * N_BUCKETS
STEP = 0.04  # weight of a session's latest token; 0.02 to 0.08 differ by 0.2 %, 0.16 costs 1 %
GLOBAL_STEP = 0.01  # the same for the initial rates of new sessions: best log loss, 3 % better than without learning


class Acceptance:
    """Rates of one session. `parent`: the initial rates of new sessions, which are learned from all sessions."""

    def __init__(self, parent: Acceptance | None = None) -> None:
        known = parent._rates if parent is not None else {}
        self._rates: dict[tuple[str, Agreement], list[float]] = {key: list(rates) for key, rates in known.items()}
        self._parent = parent
        self._step = STEP if parent is not None else GLOBAL_STEP

    def rate(self, source: str, n_match: int, agreement: Agreement = Agreement.ONE) -> float:
        """Return the probability that the token after a match of n tokens is accepted."""
        return self._rates.get((source, agreement), _prior(source, agreement))[bucket_of(n_match)]

    def survival(self, source: str, n_match: int, agreement: Sequence[Agreement]) -> list[float]:
        """Return, for each draft token, the probability that it and all before it are accepted. Each accepted token
        makes the match longer.
        """
        product, out = 1.0, []
        for i, each in enumerate(agreement):
            product *= self.rate(source, n_match + i, each)
            out.append(product)
        return out

    def observe(self, draft: Draft, drawn: Sequence[int]) -> None:
        """Learn from a draft and the drawn tokens: from each draft token up to the first rejected one."""
        for i, (proposed, each, token) in enumerate(zip(draft.tokens, draft.agreement, drawn, strict=False)):
            self._learn(draft.source, draft.n_match + i, each, proposed == token)
            if proposed != token:
                return

    def _learn(self, source: str, n_match: int, agreement: Agreement, is_right: bool) -> None:
        rates = self._rates.setdefault((source, agreement), list(_prior(source, agreement)))
        bucket = bucket_of(n_match)
        rates[bucket] += self._step * (is_right - rates[bucket])
        if self._parent is not None:
            self._parent._learn(source, n_match, agreement, is_right)


def _prior(source: str, agreement: Agreement) -> tuple[float, ...]:
    return MODEL_PRIOR if source == "draft" else PRIOR[agreement]


def bucket_of(n_match: int) -> int:
    """Return the index of the rate for a match of n tokens."""
    return min(n_match.bit_length(), N_BUCKETS - 1)
