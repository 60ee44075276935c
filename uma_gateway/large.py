"""Work for large requests, done without delaying other requests.

Large requests have threads of their own: reading one may take seconds, and a small request must never wait behind it
for a thread.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

LARGE_BYTES = 1 << 18  # size of a body; smaller ones are parsed in a millisecond or two
N_THREADS = 2
_threads = ThreadPoolExecutor(N_THREADS, "large")


async def read(n_bytes: int, reader: Callable[..., Result], *arguments: Any) -> Result:
    """Apply `reader` to a body of this many bytes, or to its parts: in a thread if the body is large."""
    if n_bytes < LARGE_BYTES:
        return reader(*arguments)
    return await in_thread(n_bytes, reader, *arguments)


async def in_thread(n_bytes: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """Run work that takes long even for a small body, in a thread."""
    return await begin(work, *arguments, threads=None if n_bytes < LARGE_BYTES else _threads)


def begin(
    work: Callable[..., Result], *arguments: Any, threads: ThreadPoolExecutor | None = None
) -> asyncio.Future[Result]:
    """Start work in one of the event loop's threads, or in one of `threads`.

    The future's error is an OSError if all threads are busy and the system allows no more.
    """
    loop = asyncio.get_running_loop()
    try:
        return loop.run_in_executor(threads, partial(work, *arguments))
    except RuntimeError:  # Python's only error for a thread that cannot be started; `work` has not begun
        failed: asyncio.Future[Result] = loop.create_future()
        failed.set_exception(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
        return failed
