"""A limit in time for what is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Wait for `work`, and cancel it when its time has passed or the caller is cancelled. Raises: TimeoutError.

    `asyncio.wait_for` before Python 3.12 returns as if nothing were the matter where its caller is cancelled in the
    moment in which the result comes: a client that had gone left its request running.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # seen, even where nobody asks for it any more
    if not done and task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
