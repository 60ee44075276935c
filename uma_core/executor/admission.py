"""Admission of requests: limits, priority inference, and the bounded queues. The one place that accepts or refuses a
request.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from uma_core.clock import Clock
from uma_core.engine.api import EngineInfo
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor import overflow
from uma_core.session.embedding import Embedding
from uma_core.session.events import Accepted, Event, Refused, Submit
from uma_core.session.session import Grant, Session
from uma_core.session.table import SessionTable
from uma_core.suggest import suggest
from uma_core.types import AdapterSet, Priority, Request, Slo, n_extra

RETRY_AFTER_MS_LEAST = 250

Peek = Callable[[Session], int]  # how much of a prompt the engine's cache has


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits from the configuration; replaced whole on reload."""

    max_sessions: int = 32
    max_tokens: int = 2048
    default_max_tokens: int = 512
    queue: tuple[int, int] = (64, 64)  # by priority
    auto_lane_tokens: int = 512  # a request without a priority that has more prompt to read is background
    timeout_ns: int = 0  # for requests without their own; 0: none
    slo_ttft_ns: int = 0  # targets for requests without their own; 0: none
    slo_tbt_ns: int = 0
    overflow: str = overflow.ERROR  # for requests that do not say


class AdmissionControl:
    """Shared by all engines of the process: session numbers are unique for the life of the daemon."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self.closed: UmaError | None = None  # draining or stopping: why nothing new is accepted
        self._clock = clock
        self._sids = itertools.count(1)

    def admit(
        self,
        command: Submit,
        info: EngineInfo,
        table: SessionTable,
        events: deque[Event],
        n_cached: Peek = lambda session: 0,
    ) -> list[Session]:
        """Post an Accepted or a Refused event. Returns an accepted request's sessions, one for each answer."""
        try:
            session = self._open(command, info, table, n_cached)
        except UmaError as error:
            events.append(Refused(command.conn_id, command.request.id, error))
            return []
        answers = [session, *(self._another(session) for _ in range(session.request.n_answers - 1))]
        events.append(Accepted(session.conn_id, session.id, table.position(session)))
        for answer in answers[1:]:
            table.add(answer, command.peer)
        return answers

    def _another(self, session: Session) -> Session:
        """Return a session for one more answer to the same request."""
        grant = Grant(session.priority, session.n_max, self._clock.now_ns(), session.echo)
        other = Session(next(self._sids), session.conn_id, session.request, session.prompt, grant)
        same = "n_cells", "n_dropped", "is_shifting", "n_head", "t_received_ns", "message_ends", "adapters"
        for name in same:
            setattr(other, name, getattr(session, name))
        other.matcher = session.matcher.fork() if session.matcher is not None else None
        return other

    def _open(self, command: Submit, info: EngineInfo, table: SessionTable, n_cached: Peek) -> Session:
        request, limits = command.request, self.limits
        if self.closed is not None:
            raise self.closed
        if table.find(command.conn_id, request.id):
            raise UmaError(ErrorCode.DUPLICATE_ID)
        if request.embed is None and not info.can_generate:
            message = "this model computes vectors or scores, not text: use `embed` or `rerank`"
            raise UmaError(ErrorCode.UNSUPPORTED, message)
        if request.n_answers > info.n_seq_max:
            field, most = "best_of" if request.best_of else "n", info.n_seq_max
            message = f"`{field}`: at most {most} answers at once"
            raise UmaError(ErrorCode.BAD_REQUEST, message, field=field, limit=most)
        tokens = np.asarray(command.tokens, np.int32)
        _check_tokens(tokens, info.n_vocab, "tokens" if request.embed is None else "input")
        adapters = adapters_of(request, info)
        session = (
            self._embedding(command, tokens, info)
            if request.embed is not None
            else self._fitted(command, tokens, info.n_ctx_seq)
        )
        session.adapters = adapters
        session.n_cells = -(-session.n_cells // info.kv_page) * info.kv_page
        is_batch = session.embedding is not None and session.embedding.n_inputs > 1
        if request.priority is None and (is_batch or session.n_prompt - n_cached(session) > limits.auto_lane_tokens):
            session.priority = Priority.BACKGROUND
        n_free = max(0, info.n_seq_max - sum(other.seq_id >= 0 for other in table))
        n_waiting = table.n_queued[session.priority] - n_free  # the others get a sequence in the next tick
        if n_waiting >= limits.queue[session.priority]:
            raise self._overloaded(session.priority, n_waiting, table)
        self._check_places(command, table)
        table.add(session, command.peer)
        return session

    def _check_places(self, command: Submit, table: SessionTable) -> None:
        """Refuse requests beyond the limit. A few extra places are left for clients that have no session yet.

        Raises: TOO_MANY_SESSIONS.
        """
        request, most = command.request, self.limits.max_sessions
        n_after = len(table) + request.n_answers
        if n_after <= most:
            return
        n_held = table.n_held(command.peer, request.account)
        if n_held or request.n_answers > 1 or n_after > most + n_extra(most):
            message = (
                f"{len(table)} requests are queued or running, {n_held} of them yours; the limit is {most} "
                "(limits.max_sessions)"
            )
            wait_ms = self._retry_after_ms(table)
            raise UmaError(ErrorCode.TOO_MANY_SESSIONS, message, n_held=n_held, limit=most, retry_after_ms=wait_ms)

    def _fitted(self, command: Submit, tokens: np.ndarray, n_ctx: int) -> Session:
        """Return a session whose prompt fits the context. Raises: PROMPT_TOO_LARGE."""
        request, limits, ends = command.request, self.limits, command.message_ends
        how = (request.overflow or limits.overflow) if n_ctx > 1 else overflow.ERROR  # one position cannot be cut
        n_asked = limits.default_max_tokens if request.max_tokens is None else max(1, request.max_tokens)
        n_wanted = min(n_asked, limits.max_tokens)
        n_most = n_ctx - overflow.room_for_answer(n_ctx, n_wanted)
        if how == overflow.ERROR and len(tokens) > n_ctx:
            message = f"the prompt has {len(tokens)} tokens, a sequence holds {n_ctx}"
            raise UmaError(ErrorCode.PROMPT_TOO_LARGE, message, n_tokens=len(tokens), n_ctx_seq=n_ctx)
        if len(tokens) > (n_most if how == overflow.TRUNCATE else n_ctx):
            tokens, ends = overflow.without_middle(tokens, ends, n_most)
        n_max = n_wanted if how == overflow.SHIFT else min(n_wanted, n_ctx - len(tokens) + 1)
        session = self._session(command, tokens, n_max)
        session.n_cells = min(session.n_cells, n_ctx)
        session.n_dropped = len(command.tokens) - len(tokens)
        session.is_shifting = how == overflow.SHIFT
        session.n_head = overflow.head_of(ends, n_ctx // 2)
        session.message_ends = ends
        session.matcher = command.matcher
        return session

    def _embedding(self, command: Submit, tokens: np.ndarray, info: EngineInfo) -> Session:
        """Return a session that computes its inputs one after another, and no answer.

        Raises: UNSUPPORTED, BAD_REQUEST, PROMPT_TOO_LARGE.
        """
        request = command.request
        assert request.embed is not None
        if info.embedding is None:
            raise UmaError(ErrorCode.UNSUPPORTED, "this engine makes no vectors")
        embedding = Embedding(request.embed, tokens, command.message_ends, info.embedding)
        session = self._session(command, embedding.current, 1)
        session.embedding = embedding
        session.n_given = embedding.n_tokens
        session.n_cells = embedding.longest
        return session

    def _session(self, command: Submit, tokens: np.ndarray, n_max: int) -> Session:
        """Return a session, with the configured defaults where the request gives no values."""
        request, limits = command.request, self.limits
        slo = Slo(request.slo.ttft_ns or limits.slo_ttft_ns, request.slo.tbt_ns or limits.slo_tbt_ns)
        request = dataclasses.replace(request, slo=slo, timeout_ns=request.timeout_ns or limits.timeout_ns)
        priority = Priority.INTERACTIVE if request.priority is None else request.priority
        grant = Grant(priority, n_max, self._clock.now_ns(), command.echo)
        session = Session(next(self._sids), command.conn_id, request, tokens, grant)
        session.t_received_ns = command.t_received_ns
        session.uid = command.peer.uid
        return session

    def _overloaded(self, priority: Priority, n_waiting: int, table: SessionTable) -> UmaError:
        name, most = priority.name.lower(), self.limits.queue[priority]
        return UmaError(
            ErrorCode.OVERLOADED,
            f"{n_waiting} {name} requests wait for a sequence; the limit is {most} (limits.queue_{name})",
            lane=name,
            queue_position=n_waiting,
            retry_after_ms=self._retry_after_ms(table),
        )

    def _retry_after_ms(self, table: SessionTable) -> int:
        """Return the time until half of the running sessions should have ended, judged by their own pace."""
        now = self._clock.now_ns()
        left = sorted(time_left_ns(session, now) for session in table if session.seq_id >= 0)
        return max(RETRY_AFTER_MS_LEAST, left[len(left) // 2] // 1_000_000 if left else 0)


def adapters_of(request: Request, info: EngineInfo) -> AdapterSet:
    """Return the adapters that a request asks for, or the configured ones if it names none. Raises: BAD_REQUEST."""
    if request.lora is None:
        return info.default_adapters
    known = [each.id for each in info.adapters]
    for name, _ in request.lora:
        if name not in known:
            message = f"`lora`: there is no adapter {name}{suggest(name, known)}"
            raise UmaError(ErrorCode.BAD_REQUEST, message, field="lora", known=known)
    return request.lora


def _check_tokens(tokens: np.ndarray, n_vocab: int, field: str) -> None:
    """Check the token ids of a request. Raises: BAD_REQUEST."""
    if not len(tokens):
        raise UmaError(ErrorCode.BAD_REQUEST, "the prompt is empty", field="prompt")
    if tokens.min() < 0 or tokens.max() >= n_vocab:
        raise UmaError(ErrorCode.BAD_REQUEST, f"token ids go from 0 to {n_vocab - 1}", field=field)


def time_left_ns(session: Session, now: int) -> int:
    """Estimate a session's remaining time by its own pace so far; 0 for a session without progress."""
    n_done = session.n_past
    n_left = session.n_prompt - session.n_folded + session.n_max - n_done
    elapsed = max(1, now - session.t_admitted_ns)
    return elapsed * n_left // n_done if n_done else 0
