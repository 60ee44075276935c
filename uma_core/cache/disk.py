"""The disk tier: one file per segment in a directory, written and read by a thread of its own.

Rules: the compute thread submits and polls, and never waits for the disk. A file that is damaged, cut short or of
another version is ignored and removed; files of other models stay until room is needed. A file that another user could
have written, or that is not a regular file, is left alone and not read. Each removal of a file is logged and counted.
Whatever the disk does, the daemon keeps serving: each cause of failure is reported once (CACHE_IO), and after a failed
write no other is tried for a while.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import queue
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np

from uma_core import threads
from uma_core.cache.files import (
    FIXED_BYTES,
    SUFFIX,
    Damaged,
    Head,
    decode_head,
    encode_head,
    file_name,
    head_bytes,
    header_bytes,
    payload_digest,
)
from uma_core.clock import Clock
from uma_core.errors import ErrorCode
from uma_core.kept_files import is_left_over, open_ours, replacing

log = logging.getLogger(__name__)

T = TypeVar("T")

READ, INDEX, REMOVE, WRITE, STOP = range(5)  # priorities; the lowest number goes first
BACK_OFF_NS = 60_000_000_000  # no writes for this long after one failed
PENDING_MOST = 64 << 20  # bytes that may wait to be written; the rest is written at exit, if it still exists
PIECE = 1 << 20
PAUSE_S = 0.004  # after each piece while streams run, so that the disk work does not slow them
NICE = 19
TEMPORARY = SUFFIX + ".tmp"


class Blob(NamedTuple):
    """A segment to write."""

    model: str
    tenant: int
    start: int
    tokens: np.ndarray
    payload: bytes | bytearray | memoryview
    variant: str = ""

    @property
    def name(self) -> str:
        return file_name(self.model, self.tenant, self.start, self.tokens, self.variant)

    @property
    def n_bytes(self) -> int:
        """Approximate size of the file."""
        return len(self.payload) + head_bytes(len(self.tokens))


class Found(NamedTuple):
    """A file in the directory."""

    name: str
    n_bytes: int
    t_used: float
    head: Head | None  # None: of another model, or currently unreadable


class Ticket:
    """A read in progress. `payload` is None if it failed."""

    def __init__(self) -> None:
        self.payload: bytes | None = None
        self.done = threading.Event()


class DiskTier:
    """The disk tier. The compute thread calls all public methods."""

    def __init__(
        self,
        folder: str,
        model: str,
        clock: Clock,
        wake: Callable[[], None],
        on_removed: Callable[[str], None] = lambda cause: None,
        on_full: Callable[[object], None] = lambda error: None,
    ) -> None:
        """`poll` calls `on_removed`, with the cause, for each file that was removed, and `on_full` if the file system
        had no room for one.
        """
        self._on_removed = on_removed
        self._on_full = on_full
        self.folder = folder
        self.model = model
        self.is_busy = False  # streams are running
        self.n_pending = 0  # bytes that wait to be written
        self.off_until_ns = 0
        self.last_error = ""
        self._clock = clock
        self._wake = wake
        self._jobs: queue.PriorityQueue[tuple[int, int, Callable[[], None]]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._results: deque[Callable[[], None]] = deque()
        self._warned: set[str] = set()
        self._thread = threads.start(threading.Thread(target=self._work, name="cache-disk", daemon=True))

    @property
    def can_write(self) -> bool:
        return self._clock.now_ns() >= self.off_until_ns

    def index(self, then: Callable[[list[Found]], None]) -> None:
        """Read the directory; `poll` calls `then`."""
        self._ask(INDEX, self._scan, list[Found](), then)

    def list_names(self, then: Callable[[set[str] | None], None]) -> threading.Event:
        """List the files; None: unknown. `poll` calls `then` once the event is set."""
        is_listed = threading.Event()

        def work() -> None:
            try:
                self._answer(then, self._names())
            finally:  # the caller waits for it
                is_listed.set()

        self._put(INDEX, work)
        return is_listed

    def read(self, name: str) -> Ticket:
        ticket = Ticket()
        self._put(READ, lambda: self._read(name, ticket))
        return ticket

    def write(self, blob: Blob, then: Callable[[bool], None], is_last: bool = False) -> bool:
        """Write a blob; `poll` calls `then`. False: not possible now."""
        n = blob.n_bytes
        if not self.takes(n, is_last):
            return False
        self.n_pending += n

        def after(is_written: bool) -> None:
            self.n_pending -= n
            then(is_written)

        self._ask(WRITE, lambda: self._write(blob), False, after)
        return True

    def takes(self, n_bytes: int, is_last: bool) -> bool:
        """Whether a write of this many bytes would be tried."""
        return self.can_write if is_last else self.has_room(n_bytes)

    def has_room(self, n_bytes: int) -> bool:
        """Whether this many more bytes may wait to be written. One file always may, however large it is."""
        return self.can_write and (not self.n_pending or self.n_pending + n_bytes <= PENDING_MOST)

    def remove(self, name: str, cause: str) -> None:
        """Remove a file. `cause` is one of the metric's causes."""
        self._put(REMOVE, lambda: self._remove(name, cause))

    def poll(self) -> None:
        """Run the callbacks of finished jobs on this thread."""
        while self._results:
            self._results.popleft()()

    def close(self, timeout_s: float) -> bool:
        """End the thread after its queued work, or abandon it after the timeout. True: it ended."""
        self.is_busy = False
        self._put(STOP, lambda: None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # the worker's side

    def _put(self, priority: int, job: Callable[[], None]) -> None:
        self._jobs.put((priority, next(self._order), job))

    def _ask(self, priority: int, work: Callable[[], T], otherwise: T, then: Callable[[T], None]) -> None:
        """Have the thread do `work`; `poll` calls `then` with its result, or with `otherwise` if it failed."""

        def job() -> None:
            result = otherwise
            try:
                result = work()
            finally:  # without an answer, what waits would count as waiting forever
                self._answer(then, result)

        self._put(priority, job)

    def _answer(self, then: Callable[..., None], value: object) -> None:
        self._results.append(lambda: then(value))
        self._wake()

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # lower the thread's priority if the system allows it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            priority, _, job = self._jobs.get()
            if priority == STOP:
                return
            try:
                job()
            except Exception:  # a bug here must not end the tier silently
                log.exception("the cache's disk thread")

    def _warn(self, cause: str, text: str) -> None:
        self.last_error = text
        if cause not in self._warned:
            self._warned.add(cause)
            log.warning("%s %s: %s", ErrorCode.CACHE_IO.code, ErrorCode.CACHE_IO.spec.name, text)

    def _failed(self, doing: str, error: OSError) -> None:
        cause = error.strerror or str(error)
        self._warn(f"{doing} {error.errno}", f"{doing} {self.folder}: {cause}")

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _scan(self) -> list[Found]:
        found: list[Found] = []
        try:
            os.makedirs(self.folder, 0o700, exist_ok=True)
            entries = list(os.scandir(self.folder))
        except OSError as error:
            self._failed("reading", error)
            return found
        for entry in entries:
            if entry.name.endswith(TEMPORARY):
                self._remove_stale(entry)
            elif entry.name.endswith(SUFFIX):
                each = self._look_at(entry)
                found += [each] if each is not None else []
        return found

    def _names(self) -> set[str] | None:
        try:
            return set(os.listdir(self.folder))
        except FileNotFoundError:
            return set()
        except OSError as error:
            self._failed("reading", error)
            return None

    def _open(self, name: str) -> BinaryIO | None:
        """Open a file that only this user or root can have written; None for any other. Raises: OSError."""
        fd = open_ours(self._path(name))
        if fd is not None:
            return os.fdopen(fd, "rb")
        self._leave_alone(name)
        return None

    def _leave_alone(self, name: str) -> None:
        self._warn("strange", f"{name} is not a regular file that only this user can write: not used, left as it is")

    def _head(self, file: BinaryIO, name: str) -> Head:
        """Read a file's head. Raises: Damaged, OSError."""
        fixed = file.read(FIXED_BYTES)
        head = decode_head(fixed, file.read(header_bytes(fixed)))
        if os.fstat(file.fileno()).st_size != file.tell() + head.n_bytes:
            raise Damaged("truncated")
        if head.model == self.model and name != file_name(
            head.model, head.tenant, head.start, head.tokens, head.variant
        ):
            raise Damaged("misnamed")
        return head

    def _remove_stale(self, entry: os.DirEntry[str]) -> None:
        """Remove the file of an unfinished write. Another daemon, or the tier that this one replaces, may still be
        writing it; then it stays.
        """
        with contextlib.suppress(OSError):
            if is_left_over(entry.path, entry.stat(follow_symlinks=False)):
                self._remove(entry.name, "unfinished")

    def _look_at(self, entry: os.DirEntry[str]) -> Found | None:
        name = entry.name
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:
            return None
        if not stat.S_ISREG(facts.st_mode):
            self._leave_alone(name)
            return None
        try:
            file = self._open(name)
            if file is None:
                return None
            with file:
                head = self._head(file, name)
            return Found(name, facts.st_size, facts.st_mtime, head if head.model == self.model else None)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._failed("reading", error)
            return Found(name, facts.st_size, facts.st_mtime, None)
        except Damaged as cause:
            self._discard(name, cause)
            return None

    def _discard(self, name: str, cause: Damaged) -> None:
        self._warn(str(cause), f"{name} is {cause}: removed")
        self._remove(name, "damaged")

    def _remove(self, name: str, cause: str) -> None:
        try:
            os.unlink(self._path(name))
        except FileNotFoundError:
            return
        except OSError as error:
            self._failed("removing from", error)
            return
        log.log(logging.DEBUG if cause in ("room", "cleared") else logging.INFO, "%s was removed: %s", name, cause)
        self._answer(self._on_removed, cause)

    def _read(self, name: str, ticket: Ticket) -> None:
        try:
            ticket.payload = self._payload(name)
            with contextlib.suppress(OSError):  # so the order of removal survives a restart, if the directory allows it
                os.utime(self._path(name), follow_symlinks=False)
        except FileNotFoundError:
            self._warn("gone", f"{self._path(name)} was removed by another program")
        except OSError as error:
            self._failed("reading", error)
        except Damaged as cause:
            self._discard(name, cause)
        finally:  # someone waits for the ticket, so it must be answered whatever went wrong
            ticket.done.set()
            self._wake()

    def _payload(self, name: str) -> bytes | None:
        """Read a payload. Raises: Damaged, also if another file has replaced the indexed one; OSError."""
        file = self._open(name)
        if file is None:
            return None
        with file:
            head = self._head(file, name)
            payload = file.read(head.n_bytes)
        if head.model != self.model:
            raise Damaged("misnamed")
        if len(payload) != head.n_bytes:
            raise Damaged("truncated")
        if payload_digest(payload) != head.sha256:
            raise Damaged("damaged")
        return payload

    def _write(self, blob: Blob) -> bool:
        if not self.can_write:
            return False
        payload = memoryview(blob.payload).cast("B")
        head = Head(
            blob.model, blob.tenant, blob.start, blob.tokens, len(payload), payload_digest(payload), blob.variant
        )
        try:
            os.makedirs(self.folder, 0o700, exist_ok=True)
            with replacing(self._path(blob.name)) as fd:
                _write_all(fd, encode_head(head))
                for at in range(0, len(payload), PIECE):
                    _write_all(fd, payload[at : at + PIECE])
                    if self.is_busy:
                        time.sleep(PAUSE_S)
            self._warned = {cause for cause in self._warned if not cause.startswith("writing")}
            return True
        except OSError as error:
            self.off_until_ns = self._clock.now_ns() + BACK_OFF_NS
            self._failed("writing to", error)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._answer(self._on_full, error)
            return False


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view) :]
