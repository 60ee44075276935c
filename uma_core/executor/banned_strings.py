"""Banned strings: the tokens that complete one are taken back, with their KV, and another token is drawn where the
string began.

Text that may become a banned string is held back (`session.answer`), so that no reader sees text that is taken back.
The last token that stays is computed again, as a row like any other: its logits are gone, and so is the KV of all
tokens after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uma_core.engine.api import Engine
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.meters import Meters
from uma_core.session.session import Session
from uma_core.session.table import SessionTable

NO_TOKEN = "every token that could come here would complete one of `banned_strings`"


class BannedStrings:
    def __init__(self, engine: Engine, table: SessionTable, meters: Meters) -> None:
        self._engine = engine
        self._table = table
        self._meters = meters
        self.on_rewind: Callable[[Session, int], None] = lambda session, n: None  # its KV goes back by n positions

    @staticmethod
    def mark(session: Session) -> Any:
        """What a token is about to change, for `take_back`."""
        thinking = session.thinking
        return session.logprob_sum, session.was_forced, thinking.mark() if thinking is not None else None

    @staticmethod
    def lift(session: Session) -> None:
        """A token was drawn: what was banned at its place may come at the next one."""
        if session.bans is not None and session.bans.is_set and session.sampler is not None:
            session.bans.is_set = False
            session.sampler.ban(())

    def take_back(self, session: Session) -> UmaError | None:
        """The session goes on from before the banned string. The error that ends it instead."""
        answer, bans, sampler = session.answer, session.bans, session.sampler
        assert answer is not None and bans is not None and sampler is not None
        n, token, (session.logprob_sum, session.was_forced, thought) = answer.rewind()
        self._meters.taken_back.add(n)
        self.on_rewind(session, n)
        self._table.n_changes += 1
        place = len(session.generated)
        banned = bans.add(place, token, n, answer.n_pending)
        if bans.is_spent:
            return UmaError(ErrorCode.CONSTRAINT_FAILED, NO_TOKEN, field="banned_strings")
        bans.is_set = True
        sampler.ban(banned)
        sampler.allow_end(place >= session.request.sampling.min_tokens)
        n_recent = session.request.sampling.n_recent(self._engine.info.n_ctx_seq)
        if n_recent:
            sampler.recount(session.content(session.n_content)[-n_recent:])
        if session.thinking is not None:
            session.thinking.go_back(thought)
        if session.matcher is not None:
            session.matcher.rewind(n, session.generated)
            sampler.set_mask(session.matcher.mask)
        return None
