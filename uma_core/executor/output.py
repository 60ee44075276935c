"""Passes sampled tokens to clients and ends sessions, each with exactly one final event."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from uma_core.cache.manager import PrefixCache
from uma_core.clock import Clock
from uma_core.engine.api import Engine
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.banned_strings import NO_TOKEN, BannedStrings
from uma_core.executor.constraints import Constraints
from uma_core.executor.meters import Meters
from uma_core.executor.scores import Scores, token_logprob
from uma_core.session.answer import Answer
from uma_core.session.events import End, Event, Final, Token
from uma_core.session.reasoning import Thinking
from uma_core.session.session import Session
from uma_core.session.table import SessionTable
from uma_core.types import Ended, FinishReason, Phase, TokenId, TokenLogprob

PROMPT_TAIL = 64  # tokens of the prompt in which a template may have begun a thought
NONE_ALLOWED = "every token that the constraint allows here is banned, for example by `logit_bias`"
NO_WAY_ON = "the grammar refused too many tokens that complete one of its triggers"
GOOD_ENDS = (FinishReason.STOP, FinishReason.LENGTH)


class Output:
    """Turns sampled tokens into events and closes sessions. Owned by the executor."""

    def __init__(
        self,
        engine: Engine,
        table: SessionTable,
        meters: Meters,
        events: deque[Event],
        cache: PrefixCache,
        clock: Clock,
        on_finished: Callable[[Session], None],
    ) -> None:
        """`on_finished` is called for every session that ends, before its parts are freed."""
        self._engine = engine
        self._table = table
        self._meters = meters
        self._events = events
        self._cache = cache
        self._clock = clock
        self.constraints = Constraints(table, meters)
        self.scores = Scores(engine, table, events.append)
        self.banned_strings = BannedStrings(engine, table, meters, cache)
        self.tick_ns = 0  # how long ticks take
        self.on_finished = on_finished

    def deliver(self, session: Session, token: TokenId, now_ns: int) -> None:
        """Hand one sampled token to the client, and end the session if it is the last.

        This runs between two decode calls for every stream, and most streams want nothing but text. Their path is
        inlined here, because each method call costs microseconds when the engine has emptied the processor's caches
        (`perf tick`).
        """
        if not session.is_plain or token < 0:
            self._deliver_watched(session, token, now_ns)
            return
        request, engine = session.request, self._engine
        if not request.ignore_eos and engine.is_eog(token):
            self.finish(session, FinishReason.STOP, now_ns)
            return
        last_ns = session.t_last_ns if session.t_first_ns else 0
        session.add_token(token, now_ns)
        self._meters.on_token(session, last_ns, now_ns)
        stream = session.text
        text = stream.push(engine.piece(token))
        if text:
            if request.stream:
                n_new, session.n_told = len(session.generated) - session.n_told, len(session.generated)
                self._events.append(Token(session.conn_id, session.id, text, token, None, session.index, n_new))
            else:
                session.parts.append(text)
        if stream.stopped_by:
            self.finish(session, FinishReason.STOP, now_ns, stop={"text": stream.stopped_by})
        elif len(session.generated) >= session.n_max:
            self.finish(session, FinishReason.LENGTH, now_ns)

    def deliver_first(self, session: Session) -> None:
        """Hand out the first token, which was kept when the prompt ended.

        So the client's first gap begins only when the second token is about to follow.
        """
        token, session.first_token = session.first_token, None
        if token is not None:
            self.deliver(session, token, self._clock.now_ns())

    def _deliver_watched(self, session: Session, token: TokenId, now_ns: int) -> None:
        """Handle a token that may matter to more than the text: a grammar, a stop list, a thought, a scored prompt."""
        if token < 0:
            self._end_without_token(session, now_ns)
            return
        if session.scoring is not None:
            if session.phase is not Phase.DONE:  # a row of the same call before this one may have failed
                self.scores.take(session, session.scoring, token, now_ns)
            return
        if session.answer is not None and session.is_silent:
            self.finish(session, FinishReason.LENGTH, now_ns)
            return
        if not session.request.ignore_eos and self._engine.is_eog(token):
            self.finish(session, FinishReason.STOP, now_ns)
            return
        if session.is_forced:
            self._meters.forced.add()
        if token in session.stop_tokens:
            self.finish(session, FinishReason.STOP, now_ns, stop={"token_id": token})
            return
        mark = self.banned_strings.mark(session) if session.request.banned_strings else None
        if session.matcher is not None:
            try:
                is_taken = self.constraints.accept(session, token, self.tick_ns)
            except UmaError as error:
                self._break_off(session, error, now_ns)
                return
            if not is_taken:
                self._redraw(session, token, now_ns)
                return
        if session.bans is not None:
            self.banned_strings.lift(session)
        if session.thinking is not None:
            self._think(session, session.thinking, token)
        last_ns = session.t_last_ns if session.t_first_ns else 0
        session.add_token(token, now_ns)
        self._meters.on_token(session, last_ns, now_ns)
        if session.answer is None:
            self._send(session, session.text.push(self._piece(session, token)), token)
        else:
            self._watch(session, session.answer, token, mark)
            if session.answer.must_rewind:
                self._take_back(session, now_ns)
                return
        stop = (session.answer or session.text).stopped_by
        if stop:
            self.finish(session, FinishReason.STOP, now_ns, stop={"text": stop})
        elif session.matcher is not None and session.matcher.is_done:
            self.finish(session, FinishReason.STOP, now_ns)
        elif len(session.generated) >= session.n_max:
            self.finish(session, FinishReason.LENGTH, now_ns)
        elif session.matcher is not None or session.thinking is not None:
            self._steer(session, now_ns)

    def _end_without_token(self, session: Session, now_ns: int) -> None:
        """End a session for which no token was drawn: either the request's constraints exclude every token, or the
        sampler failed.
        """
        if not self._is_none_allowed(session):
            self.fail(session, UmaError(ErrorCode.SAMPLER_FAILED), now_ns)
            return
        what = NO_TOKEN if session.request.banned_strings and _is_banning(session) else NONE_ALLOWED
        self._break_off(session, UmaError(ErrorCode.CONSTRAINT_FAILED, what), now_ns)

    def _is_none_allowed(self, session: Session) -> bool:
        """Whether the sampler refuses every token that the constraint and the banned strings leave."""
        sampler, mask = session.sampler, session.matcher.mask if session.matcher is not None else None
        if sampler is None or (mask is None and not _is_banning(session)):
            return False
        allowed: Iterable[int] = range(self._engine.info.n_vocab)
        if mask is not None:
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: self._engine.info.n_vocab]
            allowed = np.flatnonzero(bits)
        return not any(sampler.force(int(token)) for token in allowed)

    def _steer(self, session: Session, now_ns: int) -> None:
        """Force the next token where there is no choice. The end of a thought over its budget takes precedence over a
        grammar.
        """
        sampler, thinking, matcher = session.sampler, session.thinking, session.matcher
        if sampler is None:
            return
        if thinking is not None and thinking.forced:
            session.is_forced = sampler.force(thinking.forced[0])
            if not session.is_forced:
                error = UmaError(ErrorCode.CONSTRAINT_FAILED, "a token of the forced end of a thought is banned")
                self._break_off(session, error, now_ns)
            return
        if matcher is not None and matcher.forced:
            session.is_forced = sampler.force(matcher.forced[0])
            if session.is_forced:
                return
            try:
                matcher.choose()
            except UmaError as failure:
                self._break_off(session, failure, now_ns)
                return
        session.is_forced = False
        sampler.force(None)

    def _think(self, session: Session, thinking: Thinking, token: TokenId) -> None:
        """Count a thought's token. Once the budget is spent, force the tokens that end the thought."""
        if thinking.forced and thinking.forced[0] == token:
            thinking.forced.popleft()
        thinking.push(self._engine.piece(token, True))
        if thinking.is_over_budget and not thinking.forced and not session.was_forced:
            self._end_thought(session, thinking)

    def _end_thought(self, session: Session, thinking: Thinking) -> None:
        wanted = session.request.reasoning
        assert wanted is not None
        tokens = self._engine.tokenize(wanted.message + wanted.end, False, True)
        if session.matcher is not None and not session.matcher.takes(tokens):
            return  # in the middle of a character, or not in a thought: the next token may change that
        session.was_forced = True  # only once: a model that keeps thinking after the end text is not stopped again
        thinking.forced.extend(tokens)

    def _piece(self, session: Session, token: TokenId) -> bytes:
        return self._engine.piece(token, token in session.preserved_tokens)

    def _take_back(self, session: Session, now_ns: int) -> None:
        try:
            error = self.banned_strings.take_back(session)
        except UmaError as failure:  # its grammar failed
            error = failure
        if error is not None:
            self._break_off(session, error, now_ns)
        else:
            self._steer(session, now_ns)

    def _redraw(self, session: Session, token: TokenId, now_ns: int) -> None:
        """Have another token drawn in the place of one that the grammar refuses."""
        if self.banned_strings.refuse(session, token):
            self._steer(session, now_ns)
        else:
            self._break_off(session, UmaError(ErrorCode.CONSTRAINT_FAILED, NO_WAY_ON), now_ns)

    def _watch(self, session: Session, answer: Answer, token: TokenId, mark: Any) -> None:
        """Handle a token of an answer whose tokens matter one by one."""
        if len(session.generated) == session.request.sampling.min_tokens and session.sampler is not None:
            session.sampler.allow_end()
        self._echo(session)
        self._send(session, answer.push(token, self._piece(session, token), self._logprob(session, token), mark), token)

    def _logprob(self, session: Session, token: TokenId) -> TokenLogprob | None:
        found = session.sampler.logprobs() if session.sampler is not None else None
        if found is None:
            return None
        session.logprob_sum += found.logprob
        return token_logprob(self._engine, token, found)

    def _echo(self, session: Session) -> None:
        """Send the text that the answer begins with, once."""
        text, session.echo = session.echo, ""
        self._send(session, text, int(session.prompt[-1]), is_prompt=True)

    def _send(self, session: Session, text: str, token: TokenId, is_prompt: bool = False) -> None:
        if not text:
            return
        answer = session.answer
        carried = None if answer is None or session.request.sampling.logprobs is None else answer.take()
        if session.request.stream:
            n_new = 0 if is_prompt else session.n_released - session.n_told
            session.n_told += n_new
            self._events.append(Token(session.conn_id, session.id, text, token, carried, session.index, n_new))
        else:
            session.parts.append(text)
            session.logprobs += carried or ()

    def fail(self, session: Session, error: UmaError, now_ns: int) -> None:
        self.finish(session, FinishReason.ERROR, now_ns, error)

    def _break_off(self, session: Session, error: UmaError, now_ns: int) -> None:
        """End an answer that cannot satisfy its request, with an error. Its last row was good, so its KV is usable."""
        session.is_kv_good = True
        self.finish(session, FinishReason.ERROR, now_ns, error)

    def finish(
        self,
        session: Session,
        reason: FinishReason,
        now_ns: int,
        error: UmaError | None = None,
        stop: dict[str, Any] | None = None,
    ) -> None:
        """End the session with its one final event, and free its sequence, cells, prefill slot and sampler."""
        if session.phase is Phase.DONE:
            return
        if session.echo and reason in GOOD_ENDS:
            self._echo(session)
        rest = (session.answer or session.text).finish()
        self._send(session, rest, session.generated[-1] if session.generated else -1)
        unsent = session.answer.take() if session.answer is not None else ()
        session.reason = reason
        self._free(session)
        self._meters.on_end(session)
        text = "" if session.request.stream else "".join(session.parts)
        logprobs = self._kept_logprobs(session, unsent)
        usage, timing = session.usage(), session.timing(now_ns)
        if session.group is None:
            ids = session.conn_id, session.id
            embedding = session.embedding if reason is FinishReason.STOP else None
            self._end(Final(*ids, reason, text, usage, timing, error, stop, logprobs, embedding=embedding))
            return
        problem = error.to_dict() if error is not None else None
        answer = Ended(session.index, reason, text, usage, timing, problem, stop, logprobs)
        if session.request.stream:
            self._events.append(End(session.conn_id, session.id, answer))
        final = session.group.end(session, answer, error)
        if final is not None:
            self._end(final)

    def _end(self, final: Final) -> None:
        """End a request, however many answers it had."""
        self._meters.ended[final.reason].add()
        self._events.append(final)

    def _kept_logprobs(self, session: Session, unsent: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...] | None:
        kept = (*session.logprobs, *unsent)
        is_wanted = session.request.sampling.logprobs is not None and (kept or not session.request.stream)
        return kept if is_wanted else None

    def _free(self, session: Session) -> None:
        if session.sampler is not None:
            session.sampler.close()
            session.sampler = None
        if session.n_unverified:
            self._engine.kv_truncate(session.seq_id, session.n_past)
            session.n_unverified = 0
        self.on_finished(session)
        session.matcher = None
        if session.scoring is not None:
            session.scoring.close()
        transfer, session.transfer = session.transfer, None
        if transfer is not None and session.reason in GOOD_ENDS and session.phase is Phase.DECODE:
            self._cache.linger(session, self._table.linger(session), transfer)
            self._table.remove(session)
            return
        if transfer is not None:
            transfer.close()
        seq_id = self._table.release(session)
        if seq_id >= 0:
            self._engine.prefill_close(seq_id)
        self._cache.release(session, seq_id)
        self._table.remove(session)

    def open_sampler(self, session: Session) -> None:
        """Open the session's sampler. Greedy sessions need none. A penalty window starts with the prompt's tail, as in
        llama.cpp's server.
        """
        request = session.request
        if session.embedding is not None:
            return
        params = dataclasses.replace(request.sampling, ban_eog=request.ignore_eos)
        if request.best_of > request.n and params.logprobs is None:
            params = dataclasses.replace(params, logprobs=0)
        session.thinking = self._thinking(session)
        session.is_plain = is_plain(session)
        is_limited = request.reasoning is not None and request.reasoning.budget_tokens is not None
        is_restricted = session.matcher is not None or is_limited or session.bans is not None
        if not params.needs_sampler and not self._engine.info.suppressed and not is_restricted:
            return
        session.sampler = self._engine.sampler(params, session.seed)
        n_recent = params.n_recent(self._engine.info.n_ctx_seq)
        if n_recent:
            session.sampler.accept(session.prompt[-n_recent:])
        if session.matcher is not None:
            self.constraints.begin(session)
        if session.thinking is not None and session.thinking.is_over_budget:
            self._end_thought(session, session.thinking)
        self._steer(session, session.t_received_ns)

    def _thinking(self, session: Session) -> Thinking | None:
        wanted = session.request.reasoning
        if wanted is None:
            return None
        tail = (self._engine.piece(int(token), True) for token in session.prompt[-PROMPT_TAIL:])
        return Thinking(wanted, b"".join(tail))


def _is_banning(session: Session) -> bool:
    """Whether tokens are banned now, because a banned string was taken back."""
    return session.bans is not None and session.bans.is_set


def is_plain(session: Session) -> bool:
    """Whether the session's tokens are only ever text."""
    watchers = session.answer, session.matcher, session.thinking, session.bans, session.request.prompt_logprobs
    return watchers.count(None) == len(watchers) and not session.stop_tokens and not session.preserved_tokens
