"""Draft tokens from repeated text: finds the longest suffix of the text that occurred before, in the text itself or in
earlier answers, and drafts the tokens that followed it there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uma_core.session.draft import NO_DRAFT, Agreement, Draft
from uma_core.speculation.acceptance import Acceptance
from uma_core.speculation.suffix import N_FEED, Cursor, SuffixText
from uma_core.types import TokenId

OWN, HISTORY, PREDICTION = "lookup", "history", "prediction"


class Lookup:
    """The draft source of one session. `given`: (n,) int32, its prompt; borrowed. `prediction`: tokens that the client
    expects.
    """

    def __init__(
        self, given: np.ndarray, history: Sequence[SuffixText], rates: Acceptance, prediction: Sequence[TokenId] = ()
    ) -> None:
        self._own = SuffixText()
        self._given = given
        self._n_known = 0  # tokens of the answer added so far
        self._cursors = [(HISTORY, Cursor(text)) for text in history]
        self._prediction = tuple(prediction)
        self._expected = SuffixText()
        if prediction:
            self._cursors.insert(0, (PREDICTION, Cursor(self._expected)))
        self._rates = rates
        self.draft = NO_DRAFT

    def feed(self) -> bool:
        """Add a part of the prompt and of the prediction. True: the whole prompt has been added."""
        at = self._expected.n
        if at < len(self._prediction):
            self._expected.extend(np.array(self._prediction[at : at + N_FEED], np.int32))
        n = self._own.n
        if n < len(self._given):
            self._own.extend(self._given[n : n + N_FEED])
        return self._own.n >= len(self._given)

    def propose(self, generated: Sequence[TokenId], n_most: int, forced: Sequence[TokenId] = ()) -> Draft:
        """Draft at most n tokens that may follow the answer so far and `forced`, which is certain to come next.

        Learns from the tokens since the last call.
        """
        if not self.feed():
            return NO_DRAFT
        new = [*generated[self._n_known :], *forced[max(0, self._n_known - len(generated)) :]]
        if new:
            self._n_known += len(new)
            self._rates.observe(self.draft, new)
            self._own.extend(np.array(new, np.int32))
            for token in new:
                for _, cursor in self._cursors:
                    cursor.follow(token)
        self.draft = self._best(n_most)
        return self.draft

    def _best(self, n_most: int) -> Draft:
        """Draft from the place with the longest match. Of equal matches, the one in the text itself is preferred."""
        if self._prediction and not self._n_known:
            tokens = self._prediction[:n_most]
            return self._draft(tokens, [Agreement.ONE] * len(tokens), PREDICTION, 1)
        n_match, position = self._own.match()
        source, text = OWN, self._own
        for name, cursor in self._cursors:
            if cursor.n_match > n_match:
                n_match, position, source, text = cursor.n_match, cursor.position, name, cursor.text
        if not n_match or n_most <= 0:
            return NO_DRAFT
        return self._draft(*text.read(position, n_match, n_most), source, n_match)

    def _draft(self, tokens: Sequence[TokenId], agreement: Sequence[Agreement], source: str, n_match: int) -> Draft:
        survival = tuple(self._rates.survival(source, n_match, agreement))
        return Draft(tuple(tokens), survival, source, n_match, tuple(agreement))
