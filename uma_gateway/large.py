"""Large requests: what is done with them holds up nobody else.

They are read in threads of their own: they may take seconds, and a small request never stands behind one in the queue
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

LARGE_BYTES = 1 << 18  # of a body: fewer are parsed in a millisecond or two
N_THREADS = 2
_threads = ThreadPoolExecutor(N_THREADS, "large")


async def read(n_bytes: int, reader: Callable[..., Result], *arguments: Any) -> Result:
    """What `reader` makes of a body of this many bytes, or of its parts: in a thread where that is large."""
    if n_bytes < LARGE_BYTES:
        return reader(*arguments)
    return await in_thread(n_bytes, reader, *arguments)


async def in_thread(n_bytes: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """Do what takes long even for a small body."""
    return await begin(work, *arguments, threads=None if n_bytes < LARGE_BYTES else _threads)


def begin(
    work: Callable[..., Result], *arguments: Any, threads: ThreadPoolExecutor | None = None
) -> asyncio.Future[Result]:
    """Begin to do it in one of the loop's threads, or of `threads`.

    The future's error is an OSError where all of them are busy and the system allows no further one.
    """
    loop = asyncio.get_running_loop()
    try:
        return loop.run_in_executor(threads, partial(work, *arguments))
    except RuntimeError:  # Python has no better word for it, and `work` has not begun
        failed: asyncio.Future[Result] = loop.create_future()
        failed.set_exception(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
        return failed
