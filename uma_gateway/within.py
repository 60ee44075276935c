"""A time limit for something awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Wait for `work`, and cancel it when its time has passed or the caller is cancelled. Raises: asyncio.TimeoutError.

    Before Python 3.12 `asyncio.wait_for` returns normally if its caller is cancelled just as the result arrives. The
    request of a client that has left would then keep running.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved
    if not done and task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
