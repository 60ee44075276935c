"""The intake: prompts are templated and tokenised here, off the I/O thread, before the compute side sees them.

Text operations such as `tokenize` (`Task`), the encoding of embedding replies (`Encoding`) and the decoding of large
requests (`Decoding`) wait in the same queues. Large requests are read by a `Reader`.

Short prompts go first, with aging: a prompt's turn is its arrival time plus its size at `AGING_BYTES_PER_S`, so the
order never needs to be recomputed and a long paste waits a bounded time. One worker takes short prompts only, so
that a long paste in progress does not delay them.

Every job of a generate request ends in one of: Submit to the compute side, Refused, Final (cancelled), or nothing when
its client is gone. The lock covers that decision, so a cancel either stops a job here or follows its Submit.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from uma_core import threads
from uma_core.clock import Clock
from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.messages import Message, Source, Unfit
from uma_core.server.io.ports import EncodedAnswer, TextPort
from uma_core.server.operations.large import LARGE_BYTES, Local, Reader, message_of, with_input
from uma_core.server.operations.prompt import echo_text, encode
from uma_core.server.operations.sampling import resolve
from uma_core.session.events import Event, Final, Refused, Submit
from uma_core.session.session import Matcher
from uma_core.types import Constraint, FinishReason, Peer, Request

log = logging.getLogger(__name__)

STOP_S = 10.0  # for all jobs in progress; a longer one does not keep the daemon from exiting

AGING_BYTES_PER_S = 4_000_000  # about the speed of a tokeniser, so that waiting counts as much as work
SHORT_BYTES = LARGE_BYTES
NO_USAGE = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}


@dataclass(slots=True, eq=False)
class Job:
    """A generate request on its way to the compute side."""

    conn_id: int
    peer: Peer
    request: Request
    t_received_ns: int
    n_bytes: int
    source: Source | None = None  # of a large request
    is_cancelled: bool = False
    cancelled: frozenset[int] = frozenset()  # cancelled answers
    is_dropped: bool = False  # the client is gone: no event

    def cancel(self, index: int | None) -> None:
        """Cancel one of its answers; None: all of them."""
        if index is not None:
            self.cancelled |= {index}
        self.is_cancelled |= index is None or self.cancelled.issuperset(range(self.request.n_answers))

    @property
    def is_large(self) -> bool:
        return self.source is not None

    @property
    def key(self) -> tuple[int, str]:
        return self.conn_id, self.request.id


@dataclass(slots=True, eq=False)
class Task:
    """Work for another operation. Answered once, unless its client is gone."""

    conn_id: int
    t_received_ns: int
    n_bytes: int
    work: Callable[[TextPort], bytes]  # returns the reply's fields, encoded
    answer: EncodedAnswer
    is_large: bool = False
    is_dropped: bool = False


@dataclass(slots=True, eq=False)
class Encoding:
    """Vectors to encode as a reply's JSON. Needs no model. Answered once, unless its client is gone."""

    conn_id: int
    t_received_ns: int
    n_bytes: int
    work: Callable[[], bytes]
    answer: EncodedAnswer
    is_large: bool = True  # so that no short prompt waits for it
    is_dropped: bool = False


@dataclass(slots=True, eq=False)
class Decoding:
    """A large request to decode into a message. Answered once, unless its client is gone."""

    conn_id: int
    t_received_ns: int
    payload: bytes
    answer: Callable[[Message | Unfit], None]
    is_large: bool = True
    is_dropped: bool = False

    @property
    def n_bytes(self) -> int:
        return len(self.payload)


Outcome = TypeVar("Outcome")
Work = Job | Task | Encoding | Decoding
Queue = list[tuple[float, int, Work]]


class Intake:
    """See the module docstring. `put`, `cancel`, `hang_up`: called by the I/O thread, never waiting for a tokeniser."""

    def __init__(
        self,
        text: Callable[[], TextPort | None],
        submit: Callable[[Submit], None],
        post: Callable[[Event], None],
        clock: Clock,
        compile: Callable[[TextPort, Constraint], Matcher],
        reader: Reader,
    ) -> None:
        """`compile` builds the matcher of a constrained request. `reader` reads large requests."""
        self._text = text
        self._compile = compile
        self._reader = reader
        self._submit = submit
        self._post = post
        self._clock = clock
        self._condition = threading.Condition()
        self._order = itertools.count()
        self._short: Queue = []
        self._long: Queue = []
        self._jobs: dict[tuple[int, str], Job] = {}  # waiting or being worked on
        self._tasks: set[Task | Encoding | Decoding] = set()  # waiting or being worked on
        self._in_use: list[TextPort] = []
        self._is_stopping = False
        self._threads = [
            threading.Thread(target=self._work, args=(queues,), name=name, daemon=True)
            for name, queues in (("intake", (self._short, self._long)), ("intake-short", (self._short,)))
        ]

    def start(self) -> None:
        for thread in self._threads:
            threads.start(thread)

    def stop(self) -> None:
        """Refuse the waiting jobs, and end the threads after their jobs in progress; large requests are abandoned.

        Blocks for at most STOP_S, and only the first time.
        """
        with self._condition:
            is_first, self._is_stopping = not self._is_stopping, True
            self._condition.notify_all()
        self._reader.close()
        if is_first:
            self._join()
        waiting: list[Work] = [*self._jobs.values(), *self._tasks]
        for job in waiting:
            self._refuse(job)

    def _join(self) -> None:
        t_end_s = time.monotonic() + STOP_S
        for thread in self._threads:
            if thread.ident is not None:  # if startup failed, some were never started
                thread.join(max(0.0, t_end_s - time.monotonic()))

    def _refuse(self, job: Work, error: UmaError | None = None) -> None:
        """Refuse a job, because its worker has ended or it failed."""
        error = error or UmaError(ErrorCode.SHUTTING_DOWN)
        if isinstance(job, Job):
            self._end(job, error)
        else:
            self._end_task(job, _unread(job.payload, error) if isinstance(job, Decoding) else error)

    # the I/O thread's side

    @property
    def n_jobs(self) -> int:
        return len(self._jobs) + len(self._tasks)

    def put(self, job: Work) -> None:
        with self._condition:
            if isinstance(job, Job):
                self._jobs[job.key] = job
            else:
                self._tasks.add(job)
            queue = self._long if job.is_large or job.n_bytes > SHORT_BYTES else self._short
            turn = job.t_received_ns + job.n_bytes * (1e9 / AGING_BYTES_PER_S)
            heapq.heappush(queue, (turn, next(self._order), job))
            self._condition.notify_all()
            is_late = self._is_stopping
        if is_late:
            self._refuse(job)

    def prepare(self) -> None:
        """Get the reader of large requests ready for the current model, when there is nothing else to do."""

        def work(text: TextPort) -> bytes:
            self._reader.prepare(text)
            return b""

        self.put(Task(-1, self._clock.now_ns(), 0, work, lambda outcome: None, True))

    def cancel(self, conn_id: int, request_id: str, index: int | None = None) -> bool:
        """Cancel a job. False: it has left the intake, and its Submit is on the compute side."""
        with self._condition:
            job = self._jobs.get((conn_id, request_id))
            if job is not None:
                job.cancel(index)
            return job is not None

    def hang_up(self, conn_id: int) -> None:
        with self._condition:
            waiting: list[Work] = [*self._jobs.values(), *self._tasks]
            for job in waiting:
                job.is_dropped |= job.conn_id == conn_id

    def is_using(self, text: TextPort) -> bool:
        """Whether a job uses this text side, which must then not be closed. For any thread."""
        with self._condition:
            return any(used is text for used in self._in_use)

    # the workers' side

    def _work(self, queues: tuple[Queue, ...]) -> None:
        while (job := self._take(queues)) is not None:
            try:
                self._process(job)
            except Exception as error:  # such as MemoryError: the worker goes on with the next request
                log.exception("a request could not be read")
                self._refuse(job, UmaError(ErrorCode.INTERNAL, repr(error)[:200]))

    def _take(self, queues: tuple[Queue, ...]) -> Work | None:
        with self._condition:
            while not self._is_stopping:
                filled = [queue for queue in queues if queue]
                if filled:
                    return heapq.heappop(min(filled, key=lambda queue: queue[0]))[2]
                self._condition.wait()
        return None

    def _process(self, job: Work) -> None:
        if isinstance(job, Job):
            is_over = job.is_cancelled or job.is_dropped
            self._end(job, None if is_over else self._with_text(job.conn_id, lambda text: self._to_submit(text, job)))
        else:
            self._end_task(job, None if job.is_dropped else self._done(job))

    def _done(self, task: Task | Encoding | Decoding) -> bytes | Message | Unfit | UmaError:
        if isinstance(task, Decoding):
            return self._decode(task.payload)
        return self._encode(task) if isinstance(task, Encoding) else self._with_text(task.conn_id, task.work)

    def _to_submit(self, text: TextPort, job: Job) -> Submit:
        """Raises: MODEL_CHANGED. It is checked here because the model may change while a job waits."""
        if job.request.model and job.request.model != text.info.fingerprint:
            raise UmaError(ErrorCode.MODEL_CHANGED)
        request, source = resolve(text, job.request), job.source
        if source is not None and (request.suffix or request.echo):  # rare: both need the model and the text
            request, source = with_input(request, source), None
        if source is not None and request.infill is None:
            encoded = self._reader.encode(text, source)
        else:
            encoded = encode(text, request)
        matcher = self._compile(text, request.constraint) if request.constraint is not None else None
        how = job.conn_id, job.peer, request, encoded.tokens, job.t_received_ns, encoded.message_ends, text, matcher
        return Submit(*how, echo=echo_text(text, request) if request.echo else "")

    @staticmethod
    def _encode(job: Encoding) -> bytes | UmaError:
        try:
            return job.work()
        except Exception as error:
            log.exception("conn %d", job.conn_id)
            return UmaError(ErrorCode.INTERNAL, f"writing the answer failed: {type(error).__name__}")

    def _decode(self, payload: bytes) -> Message | Unfit:
        try:
            found = self._reader.digest(payload)
        except UmaError as error:
            return _unread(payload, error)
        except Exception as error:
            log.exception("a large request")
            return _unread(payload, UmaError(ErrorCode.INTERNAL, f"reading the request failed: {type(error).__name__}"))
        return found if isinstance(found, Unfit) else message_of(found, payload)

    def _with_text(self, conn_id: int, work: Callable[[TextPort], Outcome]) -> Outcome | UmaError:
        """Do the part of a job that needs the model's text side, and keep that side open meanwhile."""
        with self._condition:
            text = self._text()
            self._in_use += [text] if text is not None else []
        try:
            if text is None:
                raise UmaError(ErrorCode.MODEL_NOT_LOADED)
            return work(text)
        except UmaError as error:
            return error
        except Exception as error:  # a tokeniser's bug must not end the worker
            log.exception("conn %d", conn_id)
            return UmaError(ErrorCode.INTERNAL, f"reading the text failed: {type(error).__name__}")
        finally:
            with self._condition:
                self._in_use.remove(text) if text is not None else None

    def _end_task(self, task: Task | Encoding | Decoding, outcome: Any) -> None:
        """Answer with what the task promises, or with an error; None: its client is gone."""
        with self._condition:
            self._tasks.discard(task)
        if not task.is_dropped:
            task.answer(outcome)

    def _end(self, job: Job, outcome: Submit | UmaError | None) -> None:
        with self._condition:
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
            if job.is_dropped:
                return
            if job.is_cancelled:
                timing = _waited(self._clock.now_ns() - job.t_received_ns)
                self._post(Final(*job.key, FinishReason.CANCELLED, "", dict(NO_USAGE), timing, None))
            elif isinstance(outcome, UmaError):
                self._post(Refused(*job.key, outcome))
            elif outcome is not None:
                self._submit(outcome._replace(cancelled=job.cancelled) if job.cancelled else outcome)


def _waited(ns: int) -> dict[str, float]:
    """Return the timing of a request that never left the queue, as `Session.timing` gives it."""
    ms = round(ns * 1e-6, 3)
    return {"queue_ms": ms, "ttft_ms": 0.0, "total_ms": ms, "itl_p50_ms": 0.0, "itl_max_ms": 0.0}


def _unread(payload: bytes, error: UmaError) -> Unfit:
    """Refuse a large request that will not be read any more, under its id if possible."""
    try:
        found = Local().digest(payload)
    except (MemoryError, RecursionError):
        return Unfit(None, error)
    return found if isinstance(found, Unfit) else Unfit(found.wire_id, error)
