"""Constrained answers on the compute thread: every token is passed to its grammar, which says what may come next.

A token's step through its grammar takes 2 to 30 us, rarely more than 1 ms. It is done between two decode calls: the
threads of a CPU backend spin while they wait for each other, and one more busy thread slows them tenfold. If a
grammar's steps exceed a share of a tick, its own session skips ticks, so that other sessions do not wait.
"""

from __future__ import annotations

import logging

from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.meters import Meters
from uma_core.session.session import Session
from uma_core.session.table import SessionTable
from uma_core.types import Phase, TokenId

log = logging.getLogger(__name__)

SHARE = 20  # all grammars together may take 1 / this of the time of the ticks
LEAST_NS = 200_000  # a step that nobody notices: ordinary ones take up to 150 us at 152k tokens (99 of 100)
N_REST_MOST = 64  # ticks


class Constraints:
    def __init__(self, table: SessionTable, meters: Meters) -> None:
        self._table = table
        self._meters = meters
        self._resting: list[Session] = []

    def begin(self, session: Session) -> None:
        """Prepare the grammar for the first token, which it may already determine."""
        assert session.matcher is not None and session.sampler is not None
        session.sampler.set_mask(session.matcher.mask)

    def accept(self, session: Session, token: TokenId, tick_ns: int) -> bool:
        """Pass a token to the session's grammar. `tick_ns`: a tick's time. False: another token must be drawn.

        Raises: the error that ends the session.
        """
        matcher = session.matcher
        assert matcher is not None and session.sampler is not None
        was_open = matcher.mask is None
        try:
            is_taken = matcher.accept(token)
        except UmaError:
            raise
        except Exception as error:  # a grammar's bug ends only its own session
            log.exception("the grammar of request %s failed", session.id)
            raise UmaError(ErrorCode.INTERNAL, f"the grammar failed: {type(error).__name__}") from None
        if was_open and matcher.mask is not None:
            session.sampler.set_mask(matcher.mask)
        self._meters.steps_ns.append(matcher.spent_ns)
        if matcher.spent_ns > LEAST_NS:
            self._rest(session, matcher.spent_ns, max(LEAST_NS, tick_ns // SHARE))
        return is_taken

    def _rest(self, session: Session, spent_ns: int, budget_ns: int) -> None:
        """Skip enough ticks that the grammars' time, spread over them, stays within the budget."""
        n_constrained = sum(other.matcher is not None and other.phase is Phase.DECODE for other in self._table)
        n_rest = spent_ns * max(1, n_constrained) // budget_ns
        if n_rest and any(other is not session and other.phase is Phase.DECODE for other in self._table):
            if not session.n_rest:  # with drafts, several tokens of one call can each be slow
                self._resting.append(session)
            session.n_rest = min(N_REST_MOST, session.n_rest + n_rest)
            session.touch()
            self._table.n_changes += 1

    def next_tick(self) -> None:
        """Count down the ticks that resting sessions still skip, and end the rest if no other session benefits."""
        if not self._resting:
            return
        others = [s for s in self._table if s.phase is Phase.DECODE and not s.n_rest and not s.is_held]
        for session in self._resting:
            session.n_rest = session.n_rest - 1 if others else 0
            session.touch()
        self._table.n_changes += 1
        self._resting = [s for s in self._resting if s.n_rest and s.phase is not Phase.DONE]
