"""Writes ticks to a file of JSON lines, for as long as the daemon runs (`log.trace`).

Rules: the compute thread only puts references into a queue; a thread of its own encodes and writes. If the queue is
full, ticks are dropped and counted. When the file reaches its size limit, it is renamed to FILE.1, replacing an earlier
one.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections import deque
from contextlib import suppress
from typing import BinaryIO

from uma_core import threads
from uma_core.errors import UmaError
from uma_core.policy.plan import Plan
from uma_core.policy.state import CallReport, SchedulerState
from uma_core.trace.lines import Lines, Tick

log = logging.getLogger(__name__)

CAPACITY = 4096  # ticks in the queue: a few seconds of a fast model
BATCH_S = 0.05  # between two checks of the queue: a wake-up per tick would cost the compute thread a context switch
ROOT = 0  # uid
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


class TraceFile:
    """A trace.Sink. Lines are appended to the file's earlier content."""

    is_every_tick = False

    def __init__(self, path: str, max_bytes: int) -> None:
        """The sink's own thread opens the file, because its file system may be slow to answer."""
        self.path = path
        self.max_bytes = max_bytes
        self.n_dropped = 0
        self.has_failed = False  # nothing is written after that
        self._lines = Lines()
        self._ticks: deque[Tick] = deque()
        self._has_ticks = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        try:
            threads.start(self._thread)
        except UmaError as error:
            self.has_failed = True
            log.warning("no ticks are written to %s: %s", path, error)

    def __call__(self, state: SchedulerState, plan: Plan, reports: tuple[CallReport, ...]) -> None:
        if len(self._ticks) >= CAPACITY:
            self.n_dropped += 1
            return
        self._ticks.append(Tick(state, plan, reports))
        self._has_ticks.set()

    def name(self, sid: int, request_id: str) -> None:
        """Do nothing: request ids are not written."""

    def close(self, timeout_s: float) -> bool:
        """Write the queued ticks and end. True if that succeeded. Idempotent."""
        self._is_closing = True
        self._has_ticks.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # on its own thread

    def _run(self) -> None:
        try:
            self._write_all()
        except (OSError, ValueError) as error:  # ValueError: a value that cannot be recorded
            self.has_failed = True
            log.warning("ticks are no longer written to %s: %s", self.path, error)
        if self.n_dropped:
            log.warning("%d ticks were not written to %s: writing could not keep up", self.n_dropped, self.path)
        while not self._is_closing:
            self._ticks.clear()
            self._has_ticks.clear()
            self._has_ticks.wait()

    def _write_all(self) -> None:
        file = self._open()
        try:
            while not self._is_closing or self._ticks:
                self._has_ticks.wait()
                self._has_ticks.clear()
                if not self._is_closing:
                    time.sleep(BATCH_S)
                file = self._write_queued(file)
        finally:
            file.close()

    def _write_queued(self, file: BinaryIO) -> BinaryIO:
        while self._ticks:
            for line in self._lines.of(self._ticks.popleft()):
                file.write(line.encode() + b"\n")
            if file.tell() >= self.max_bytes:
                file.close()
                with suppress(FileNotFoundError):  # another program has moved or removed it
                    os.replace(self.path, self.path + ".1")
                file = self._open()
        file.flush()
        return file

    def _open(self) -> BinaryIO:
        """Open the file. Raises: OSError."""
        fd = os.open(self.path, FLAGS, 0o600)
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(fd)
            raise OSError("it is not a regular file")
        if facts.st_uid not in (os.geteuid(), ROOT):  # in /tmp anybody may have created it, to read what is written
            os.close(fd)
            raise OSError("it belongs to another user")
        self._lines.restart()
        file = os.fdopen(fd, "ab")
        if file.tell():
            file.write(b"\n")  # an earlier writer may have been stopped in the middle of a line
        return file
