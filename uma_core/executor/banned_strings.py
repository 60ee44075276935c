"""Banned strings: once one is complete, its tokens are taken back with their KV, and another token is drawn where the
string began.

Text that may become a banned string is held back (`session.answer`), so that no client sees text that is taken back.
The last remaining token is computed again, as a row like any other: its logits are gone, and so is the KV of all tokens
after it.
"""

from __future__ import annotations

from typing import Any

from uma_core.cache.manager import PrefixCache
from uma_core.engine.api import Engine, Sampler
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor import overflow
from uma_core.executor.meters import Meters
from uma_core.session.bans import Bans
from uma_core.session.session import Session
from uma_core.session.table import SessionTable
from uma_core.types import Phase, TokenId

NO_TOKEN = "every token that could come here would complete one of `banned_strings`"


class BannedStrings:
    def __init__(self, engine: Engine, table: SessionTable, meters: Meters, cache: PrefixCache) -> None:
        self._engine = engine
        self._table = table
        self._meters = meters
        self._cache = cache

    @staticmethod
    def mark(session: Session) -> Any:
        """Return what a token is about to change, so that `take_back` can restore it."""
        thinking, matcher = session.thinking, session.matcher
        thought = thinking.mark() if thinking is not None else None
        searched = matcher.mark() if matcher is not None else None
        return session.logprob_sum, session.was_forced, thought, searched

    @staticmethod
    def lift(session: Session) -> None:
        """A token was drawn: what was banned at its place is allowed at the next one."""
        if session.bans is not None and session.bans.is_set and session.sampler is not None:
            session.bans.is_set = False
            session.sampler.ban(())

    def take_back(self, session: Session) -> UmaError | None:
        """Rewind the session to before the banned string. Returns an error if that ends the session."""
        answer, bans, sampler = session.answer, session.bans, session.sampler
        assert answer is not None and bans is not None and sampler is not None
        n, token, (session.logprob_sum, session.was_forced, thought, searched) = answer.rewind()
        self._meters.taken_back.add(n)
        if not self._ban(session, bans, sampler, token, n):
            return UmaError(ErrorCode.CONSTRAINT_FAILED, NO_TOKEN, field="banned_strings")
        sampler.allow_end(len(session.generated) >= session.request.sampling.min_tokens)
        if session.thinking is not None:
            session.thinking.go_back(thought)
        if session.matcher is not None:
            session.matcher.rewind(n, searched)
            sampler.set_mask(session.matcher.mask)
        return None

    def refuse(self, session: Session, token: TokenId) -> bool:
        """Have the session's last row computed again and another token drawn than this one, which its grammar refused.

        False: that happened too often.
        """
        assert session.sampler is not None
        session.bans = session.bans or Bans(session.n_max)
        session.generated.append(token)  # as if it had been taken
        return self._ban(session, session.bans, session.sampler, token, 1)

    def _ban(self, session: Session, bans: Bans, sampler: Sampler, token: TokenId, n: int) -> bool:
        """Take back the last n generated tokens. Ban `token`, the first of them, at its place.

        False: tokens were banned too often.
        """
        self._rewind(session, n)
        self._table.n_changes += 1
        n_pending = session.answer.n_pending if session.answer is not None else 0
        sampler.ban(bans.add(len(session.generated), token, n, n_pending))
        bans.is_set = True
        n_recent = session.request.sampling.n_recent(self._engine.info.n_ctx_seq)
        if n_recent:
            sampler.recount(session.content(session.n_content)[-n_recent:])
        return not bans.is_spent

    def _rewind(self, session: Session, n: int) -> None:
        """Take back the last n generated tokens of a running session, and their KV.

        The last remaining token is computed again.
        """
        session.n_seen = max(session.n_seen, session.n_past)
        n_left, n_kept = session.n_content - n, session.n_past - n
        tokens = session.content(n_left)
        if session.is_shifting and n_left <= session.n_head:  # a shift dropped the beginning of the string
            tokens = overflow.newest(session.text_without(n), session.n_head, self._engine.info.n_ctx_seq)
            n_kept = min(session.n_head, len(tokens) - 1)
        session.take_back(n, tokens)
        session.become(Phase.PREFILL)
        self._cache.shift(session, n_kept)
