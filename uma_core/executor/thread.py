"""The compute thread: the only one that touches engines. Runs commands, then ticks, then sleeps when idle."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from uma_core import threads
from uma_core.clock import Clock
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.executor import Executor
from uma_core.executor.ports import Ports
from uma_core.session.events import Call, Cancel, Command, Event, HangUp, Hold, Refused, Submit
from uma_core.types import FinishReason

log = logging.getLogger(__name__)

CLOSE_S = 3.0  # for all engines to keep snapshots at the end; less than the daemon waits for this thread
RETRY_S = 0.005  # sessions wait, but no plan could serve them: time (aging) may change that


class ComputeThread:
    """Owns executors: the current one takes new requests, older ones finish what they have (reload)."""

    def __init__(self, wake: Callable[[], None], clock: Clock, wake_fd: Callable[[], int]) -> None:
        """`wake` ends the I/O thread's sleep. Writing 8 bytes to `wake_fd` does the same; -1: there is no need to."""
        self.events: deque[Event] = deque()
        self.executors: tuple[Executor, ...] = ()  # replaced whole: other threads iterate over it
        self.current: Executor | None = None
        self.turn_since_ns = 0  # when the current turn began, which shows a hang; 0 while the thread sleeps
        self.on_retired: Callable[[Executor], None] = lambda executor: executor.engine.close()
        self.between_ticks: Callable[[bool], None] = lambda is_busy: None
        self._clock = clock
        self._wake_io = wake
        self._wake_fd = wake_fd
        self._commands: deque[Command] = deque()
        self._signal = threading.Event()
        self.ports = Ports(self.events, self._announce, self._fd_to_wake, self._signal.set)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def install(self, executor: Executor) -> None:
        """Make an executor the current one; it was built with `self.ports`.

        On the compute thread, or before `start`.
        """
        assert executor.events is self.events
        self.executors = (*self.executors, executor)
        self.current = executor

    def dismiss(self) -> None:
        """Take no new requests until the next `install`; engines without sessions retire at once.

        On the compute thread.
        """
        self.current = None
        self._retire()

    def start(self) -> None:
        threads.start(self._thread)

    def submit(self, command: Command) -> None:
        """Queue a command. Any thread; never blocks."""
        self._commands.append(command)
        self._signal.set()
        for executor in self.executors:
            executor.engine.interrupt()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its current tick; running sessions get their final event. True when it ended."""
        self._is_stopping = True
        self._signal.set()
        for executor in self.executors:
            executor.engine.interrupt()
            executor.engine.abort()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_in_call(self) -> bool:
        """Whether a decode call runs. Any thread."""
        return any(executor.calls.is_in_call for executor in self.executors)

    def _run(self) -> None:
        while not self._is_stopping:
            self._signal.clear()
            self.turn_since_ns = self._clock.now_ns()
            try:
                is_busy = self._turn()
            except Exception:  # a bug in one turn must not end the thread that all sessions share
                log.exception("a turn of the compute thread failed")
                is_busy = False
            if not is_busy:
                self._announce()
                self.turn_since_ns = 0
                self._signal.wait(self._pause_s())
        self._end()

    def _pause_s(self) -> float | None:
        """Return how long to sleep; None: until a command. If no session waits, do a slice of idle-time work first."""
        if any(len(e.table) for e in self.executors):
            return RETRY_S
        try:
            return min((s for s in [e.idle() for e in self.executors] if s is not None), default=None)
        except Exception:
            log.exception("the cache's housekeeping failed")
            return None

    def _turn(self) -> bool:
        for executor in self.executors:
            executor.engine.clear_interrupt()
        self._obey()
        is_busy = self._tick()
        self.between_ticks(is_busy)
        return is_busy

    def _end(self) -> None:
        self.turn_since_ns = 0
        for executor in self.executors:
            executor.end_all(FinishReason.ERROR, UmaError(ErrorCode.SHUTTING_DOWN))
        self._obey()
        self._wake_io()
        deadline_ns = self._clock.now_ns() + int(CLOSE_S * 1e9)
        for executor in reversed(self.executors):  # the current one first: most later requests will find its content
            executor.close(max(0, deadline_ns - self._clock.now_ns()) / 1e9)

    def _announce(self) -> None:
        """Wake the I/O thread if events wait.

        This is called when the GIL is about to be released: earlier, both threads would contend for it.
        """
        if self.events:
            self._wake_io()
            self._note_announced()

    def _note_announced(self) -> None:
        for executor in self.executors:
            executor.calls.on_announced()

    def _fd_to_wake(self) -> int:
        """Return the descriptor that the engine writes to as it is entered.

        Nothing is lost if it does not write: events that remain are announced again.
        """
        if not self.events:
            return -1
        self._note_announced()
        return self._wake_fd()

    def _obey(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            try:
                self._do(command)
            except Exception:  # a bug in one command must not end the thread that all sessions share
                log.exception("command %s failed", type(command).__name__)

    def _do(self, command: Command) -> None:
        if isinstance(command, Submit):
            if self.current is None or self._is_stopping:
                code = ErrorCode.SHUTTING_DOWN if self._is_stopping else ErrorCode.MODEL_NOT_LOADED
                self.events.append(Refused(command.conn_id, command.request.id, UmaError(code)))
            else:
                self.current.submit(command)
        elif isinstance(command, Cancel):
            any(executor.cancel(command.conn_id, command.request_id, command.which) for executor in self.executors)
        elif isinstance(command, HangUp):
            for executor in self.executors:
                executor.hang_up(command.conn_id)
        elif isinstance(command, Hold):
            for executor in self.executors:
                executor.hold(command.conn_id, command.is_held)
        elif isinstance(command, Call):
            try:
                command.reply(command.function(), None)
            except Exception as error:
                command.reply(None, error)

    def _tick(self) -> bool:
        is_busy = False
        for executor in self.executors:
            try:
                is_busy |= executor.tick()
            except Exception:
                log.exception("tick failed")
                executor.end_all(FinishReason.ERROR, UmaError(ErrorCode.INTERNAL))
        self._retire()
        return is_busy

    def _retire(self) -> None:
        for executor in self.executors:
            if executor is not self.current and not len(executor.table):
                self.executors = tuple(e for e in self.executors if e is not executor)
                executor.close(0.0)
                self.on_retired(executor)
