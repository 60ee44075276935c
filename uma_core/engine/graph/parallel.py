"""Threads that load weights: they read and lay out pieces of files in parallel, and yield to streams that are served
meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from uma_core.machine import use_all_processors

Item = TypeVar("Item")
Result = TypeVar("Result")

NICE = 19  # a reload must not take a core from the streams; if nothing streams, it gets all cores
# pieces per thread that are requested from the disk before they are read: for two threads, 32 MiB in pieces of 2 MiB
# keep a fast disk busy
N_PENDING = 8


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], n_threads: int, done: Callable[[Result], None]
) -> None:
    """Call `work` with each item on `n_threads` threads, and `done` with each result on this one, in order.

    It draws from `items` a little ahead of the work. The first exception, from any of them, ends it, once the work in
    progress is done.
    """
    pool = ThreadPoolExecutor(n_threads, "loader", _yield_to_streams)
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= N_PENDING * n_threads:
                done(pending.popleft().result())
        while pending:
            done(pending.popleft().result())
    finally:
        pool.shutdown(cancel_futures=True)


def _yield_to_streams() -> None:
    use_all_processors()  # the thread that started this one may be bound to one
    with contextlib.suppress(OSError, AttributeError):  # Linux has priorities per thread
        if os.uname().sysname == "Linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def will_need(fd: int, offset: int, n_bytes: int) -> None:
    """Ask the system to read a part of a file ahead, if it can.

    The system's own read-ahead is too short for a fast disk.
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, offset, n_bytes, os.POSIX_FADV_WILLNEED)


def read_into(fd: int, view: memoryview, offset: int) -> bool:
    """Fill `view` from a file. False: the file ends before. Releases the GIL. Raises: OSError."""
    while len(view):
        if hasattr(os, "preadv"):
            n = os.preadv(fd, [view], offset)
        else:
            data = os.pread(fd, len(view), offset)
            n = len(data)
            view[:n] = data
        if not n:
            return False
        view, offset = view[n:], offset + n
    return True
