"""Decides which tokens the executor may draft for each session. Compute thread only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from uma_core.session.draft import NO_DRAFT, Draft
from uma_core.session.session import Session
from uma_core.speculation.acceptance import Acceptance
from uma_core.speculation.history import History
from uma_core.speculation.lookup import Lookup
from uma_core.speculation.model import Drafter, ModelSource
from uma_core.speculation.settings import AUTO, DRAFT, LOOKUP, OFF, Settings
from uma_core.types import Phase, TokenId


class DraftSource(Protocol):
    """Source of draft tokens for one session."""

    def feed(self) -> bool:
        """Add a part of the prompt, in a fraction of a millisecond. True: the whole prompt has been added."""

    def propose(self, generated: Sequence[TokenId], n_most: int, forced: Sequence[TokenId] = ()) -> Draft:
        """Draft at most n tokens that may follow the answer so far and `forced`, which is certain to come next."""


NewSource = Callable[[Session], DraftSource]


# Most tokens that a stream may be ahead. It spends them in steps that other streams' drafts lengthen. A step with eight
# rows for four streams costs 0.2 to 0.3 of a token, so they last for some sixty steps of new text. Four edits are 1.92
# times as fast as without drafts with 8, 2.04 times with 16, 2.05 times with 32 (`python -m perf drafts`).
AHEAD_MOST = 16.0
AHEAD_FIRST = 1.0  # for a new stream: without any, each stream would wait for the others' drafts


class Speculator:
    """Keeps `session.draft` up to date. The executor counts drafted and accepted tokens."""

    def __init__(
        self,
        settings: Settings,
        is_exact: bool,
        new_source: NewSource | None = None,
        model: Drafter | None = None,
    ) -> None:
        """`is_exact`: a row's logits do not depend on the other rows of its call.

        Owns `model`.
        """
        self._settings = settings
        self._is_exact = is_exact
        self._history = History(settings.n_history)
        self._rates = Acceptance()
        self._new_source = new_source or self._lookup
        self.model = model
        self._live: dict[int, Session] = {}  # by sid: sessions that draft, from acceptance to their end

    def _lookup(self, session: Session) -> DraftSource:
        prediction = session.request.prediction
        expected = () if isinstance(prediction, str) else prediction
        return Lookup(session.given, self._history.texts(session.client), Acceptance(self._rates), expected)

    @property
    def mode(self) -> str:
        """The mode of requests that give none."""
        return self._settings.mode

    def apply(self, settings: Settings) -> None:
        """Apply new settings, between two ticks. Running requests keep their mode."""
        if settings.n_history != self._settings.n_history:
            self._history = History(settings.n_history)
        self._settings = settings

    def begin(self, session: Session) -> None:
        """Set up an accepted session."""
        request = session.request
        modes = {request.speculate or self._settings.mode}
        if request.prediction and not request.speculate:
            modes.add(AUTO)  # beside the configured mode, which may draft where `auto` does not
        is_auto = AUTO in modes and self._is_exact
        session.looks_up = LOOKUP in modes or is_auto
        session.asks_model = self.model is not None and (DRAFT in modes or is_auto)
        # bans take back tokens that the sources have seen; an input that becomes a vector has no answer
        session.speculates = modes != {OFF} and session.bans is None and session.embedding is None
        if session.speculates:
            session.ahead = AHEAD_FIRST
            self._live[session.sid] = session

    def propose(self, stretch: float = 0.0) -> float:
        """Update the drafts of decoding sessions. Returns the probability of the likeliest first token.

        Also adds prompts that are being read. `stretch`: of the last plan that was carried out.
        """
        best = 0.0
        if not self._live:
            return best
        self._history.feed()
        for session in self._live.values():
            if session.phase is Phase.DECODE:
                _count_ahead(session, stretch)
                self._update(session)
                if session.draft.survival:
                    best = max(best, session.draft.survival[0])
            elif session.phase is Phase.PREFILL and session.looks_up:
                self._source(session).feed()
            elif session.phase is Phase.PARKED:
                self._close_model(session)  # others get its sequence, and its cells of prediction heads
                session.n_model_begun = -1
        return best

    def _source(self, session: Session) -> DraftSource:
        source: DraftSource | None = session.drafts
        if source is None:
            source = session.drafts = self._new_source(session)
        return source

    def _update(self, session: Session) -> None:
        n_most = min(self._settings.n_most, session.n_draft_most)
        session.draft, session.draft_rates = NO_DRAFT, ()
        if session.scoring is None:
            if session.is_forced and n_most:
                self._continue(session, tuple(itertools.islice(session.forced, n_most)), n_most)
            else:
                self._guess(session, n_most)
        session.touch()

    def _continue(self, session: Session, forced: tuple[TokenId, ...], n_most: int) -> None:
        """Draft the forced tokens, then tokens from a lookup, because forced runs are short."""
        n, more = len(forced), NO_DRAFT
        if session.looks_up and n < n_most:
            more = self._source(session).propose(_known(session), n_most - n, forced)
        session.draft = Draft(
            forced + more.tokens, (1.0,) * n + more.survival, more.source or "forced", more.n_match, n_forced=n
        )

    def _guess(self, session: Session, n_most: int) -> None:
        """Take the likelier draft, from a lookup or from the draft model. Decide whether to ask the model for more."""
        if session.looks_up:
            session.draft = self._source(session).propose(_known(session), n_most)
        model = self._model_source(session) if session.asks_model else None
        if model is None:
            return
        drafted = model.draft(_new(session))
        if drafted.tokens and (not session.draft.survival or drafted.survival[0] > session.draft.survival[0]):
            session.draft = Draft(drafted.tokens[:n_most], drafted.survival[:n_most], drafted.source, drafted.n_match)
        if model.is_over:
            self._close_model(session)  # another stream gets its sequence
            return
        rates = model.rates(max(0, n_most - 1))
        is_beaten = session.draft.survival and rates and session.draft.survival[0] >= rates[0]
        session.draft_rates = () if is_beaten and session.draft.source != drafted.source else rates

    def _model_source(self, session: Session) -> ModelSource | None:
        """Return the model's source for the text in the session's context, which begins anew once that was shifted.

        None: all of the model's sequences are taken, or this text is too long for it.
        """
        if self.model is not None and session.n_model_begun != session.n_rereads:
            self._close_model(session)
            given = session.prompt if session.n_rereads else session.given  # a scored prompt is read token by token
            session.model_drafts = self.model.open(given, Acceptance(self._rates))
            if session.model_drafts is not None:
                session.n_model_begun = session.n_rereads
        source: ModelSource | None = session.model_drafts
        return source

    @property
    def reads_states(self) -> bool:
        """Whether `see` has any effect."""
        return self.model is not None and self.model.reads_states

    def see(self, session: Session, pos: int, states: np.ndarray) -> None:
        """Take the hidden states just computed for a session's positions from `pos` on: (n, n_embd) float32."""
        source = self._model_source(session) if session.sid in self._live else None
        if source is not None:
            source.see(pos, states)

    def run_model(self, sid: int, n_tokens: int, ns: int) -> None:
        """Let the draft model draft for a session's next step, for `ns` at most. The plan did not know how many tokens
        this step would bring: only as many are drafted as still have room.
        """
        session = self._live.get(sid)
        if session is None or session.phase is not Phase.DECODE or session.model_drafts is None:
            return
        if n := min(n_tokens, session.n_draft_most):
            session.model_drafts.run(_new(session), n, ns)

    def end(self, session: Session) -> None:
        """Clean up after a session that has ended."""
        self._live.pop(session.sid, None)
        session.drafts = None
        self._close_model(session)
        if session.looks_up:
            self._history.add(session.client, session.generated)

    @staticmethod
    def _close_model(session: Session) -> None:
        if session.model_drafts is not None:
            session.model_drafts.close()
            session.model_drafts = None


def _count_ahead(session: Session, stretch: float) -> None:
    """Add to `ahead` the extra tokens of the last step, less those that the step's length cost."""
    n_new = len(session.generated) - session.n_counted
    if n_new > 0:
        session.ahead = max(0.0, min(AHEAD_MOST, session.ahead + n_new - 1 - stretch))
        session.n_counted += n_new


def _known(session: Session) -> Sequence[TokenId]:
    """Return the answer so far, as its reader will see it."""
    return session.generated if session.first_token is None else [session.first_token]


def _new(session: Session) -> Sequence[TokenId]:
    """Return the part of the answer that is not part of the session's prompt: what follows the model source's text."""
    known = _known(session)
    return known[session.n_folded :] if session.n_folded else known
