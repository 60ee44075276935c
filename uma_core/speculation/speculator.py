"""Which tokens the executor may draft for each session. Compute thread only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from uma_core.session.draft import NO_DRAFT, Draft
from uma_core.session.session import Session
from uma_core.speculation.acceptance import Acceptance
from uma_core.speculation.history import History
from uma_core.speculation.lookup import Lookup
from uma_core.speculation.settings import AUTO, LOOKUP, OFF, Settings
from uma_core.types import Phase, TokenId

LEAST = 0.1  # a first draft token less likely than this is not worth a plan: a row more costs at least 2 % of a step


class DraftSource(Protocol):
    """Of one session."""

    def feed(self) -> bool:
        """Take in a part of the prompt, in a fraction of a millisecond; whether all of it is in."""

    def propose(self, generated: Sequence[TokenId], n_most: int) -> Draft:
        """At most n tokens that may follow the answer so far."""


NewSource = Callable[[Session], DraftSource]


class Speculator:
    """Keeps `session.draft` up to date. What was drafted and accepted is counted by the executor."""

    def __init__(self, settings: Settings, is_exact: bool, new_source: NewSource | None = None) -> None:
        """`is_exact`: the engine computes the same logits for a row whatever other rows are computed with it."""
        self._settings = settings
        self._is_exact = is_exact
        self._history = History(settings.n_history)
        self._rates = Acceptance()
        self._new_source = new_source or self._lookup

    def _lookup(self, session: Session) -> DraftSource:
        prediction = session.request.prediction
        expected = () if isinstance(prediction, str) else prediction
        return Lookup(session.given, self._history.texts(session.client), Acceptance(self._rates), expected)

    def apply(self, settings: Settings) -> None:
        """Between two ticks. Requests that are running keep their mode."""
        if settings.n_history != self._settings.n_history:
            self._history = History(settings.n_history)
        self._settings = settings

    def begin(self, session: Session) -> None:
        """It was accepted."""
        request = session.request
        mode = request.speculate or (AUTO if request.prediction else self._settings.mode)
        session.looks_up = mode == LOOKUP or (mode == AUTO and self._is_exact)
        session.speculates = mode != OFF and session.bans is None  # what is taken back was seen by all sources

    def propose(self, sessions: Iterable[Session]) -> bool:
        """Look for drafts of the sessions that decode; whether there are any. Prompts that are being read are taken in."""
        found = False
        for session in sessions:
            if not session.speculates:
                continue
            if session.phase is Phase.DECODE:
                self._update(session)
                found |= bool(session.draft.tokens)
            elif session.phase is Phase.PREFILL and session.looks_up:
                self._source(session).feed()
        return found

    def _source(self, session: Session) -> DraftSource:
        source: DraftSource | None = session.drafts
        if source is None:
            source = session.drafts = self._new_source(session)
        return source

    def _update(self, session: Session) -> None:
        n_most = min(self._settings.n_most, session.n_draft_most)
        if session.scoring is not None:
            session.draft = NO_DRAFT
        elif session.is_forced and n_most:
            tokens = tuple(itertools.islice(session.forced, n_most))
            session.draft = Draft(tokens, (1.0,) * len(tokens), "forced")
        elif session.looks_up:
            known = session.generated if session.first_token is None else [session.first_token]
            draft = self._source(session).propose(known, n_most)
            session.draft = draft if draft.survival and draft.survival[0] >= LEAST else NO_DRAFT
        else:
            session.draft = NO_DRAFT
        session.touch()

    def end(self, session: Session) -> None:
        """The session has ended."""
        session.drafts = None
        if session.looks_up:
            self._history.add(session.client, session.generated)
