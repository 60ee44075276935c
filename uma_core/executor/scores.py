"""Log probabilities of prompts: their tokens go through the decode calls one by one, or several at once if that delays
no other session.
"""

from __future__ import annotations

from collections.abc import Callable

from uma_core.engine.api import Engine, Logprobs
from uma_core.session.events import Prompt
from uma_core.session.scoring import Scoring
from uma_core.session.session import Session
from uma_core.session.table import SessionTable
from uma_core.types import SamplingParams, TokenId, TokenLogprob

N_EVENT = 64  # tokens in an event: some 100 kB with 20 alternatives each


class Scores:
    def __init__(self, engine: Engine, table: SessionTable, post: Callable[[Prompt], None]) -> None:
        self._engine = engine
        self._table = table
        self._post = post

    def begin(self, session: Session) -> None:
        """Called before the session has a sequence.

        One of a request's answers does this. If it ends early, the next one continues.
        """
        n_top = session.request.prompt_logprobs
        if n_top is None or (session.group is not None and session.group.has_scores):
            return
        wanted = SamplingParams(logprobs=n_top)
        n_told = session.group.n_scored if session.group is not None else 0
        scoring = Scoring(session.prompt, lambda: self._engine.sampler(wanted, 0), n_told)
        first = int(scoring.tokens[0])
        session.score(scoring)
        scoring.found.append(TokenLogprob(first, self._engine.piece(first, True), None))
        if len(scoring.tokens) == 1:
            self._end(session, scoring)

    def n_more(self, session: Session, n_tokens: int, n_outputs: int) -> int:
        """Return how many prompt rows may be added to a call of `n_tokens` tokens, `n_outputs` of which want logits.

        Alone in the daemon, as many as a call can give logits for; beside others, as many as fill the call to a size
        that the engine reports as cheap (`ride_rows`).
        """
        assert session.scoring is not None
        info = self._engine.info
        is_alone = sum(not other.is_waiting for other in self._table) == 1
        n_most = info.n_batch if is_alone else next((n for n in info.capabilities.ride_rows if n >= n_tokens), n_tokens)
        n_left = len(session.scoring.tokens) - session.n_prompt
        return max(0, min(n_most - n_tokens, info.n_outputs - n_outputs, n_left - 1))

    def take(self, session: Session, scoring: Scoring, token: TokenId, now_ns: int) -> None:
        """Take the prompt's next token and its log probability from a row."""
        scoring.found.append(token_logprob(self._engine, token, scoring.take()))
        self._table.n_changes += 1  # the prompt's token comes next, not the one that was drawn
        if session.read_on(now_ns):
            self._end(session, scoring)
        elif len(scoring.found) >= N_EVENT:
            self._tell(session, scoring)

    def _end(self, session: Session, scoring: Scoring) -> None:
        self._tell(session, scoring)
        if session.group is not None:
            session.group.has_scores = True
        scoring.close()
        session.scoring = None

    def _tell(self, session: Session, scoring: Scoring) -> None:
        n_known = min(scoring.n_told, len(scoring.found))
        told, scoring.found = scoring.found[n_known:], []
        scoring.n_told -= n_known
        if session.group is not None:
            session.group.n_scored += len(told)
        if told:
            self._post(Prompt(session.conn_id, session.id, tuple(told)))


def token_logprob(engine: Engine, token: TokenId, found: Logprobs) -> TokenLogprob:
    """Add the bytes of the token, and of the likeliest ones."""
    top = tuple((t, engine.piece(t, True), p) for t, p in found.top)
    return TokenLogprob(token, engine.piece(token, True), found.logprob, top)
