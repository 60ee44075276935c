"""Runs blocking work on threads of its own, and reports its end on the loop's thread.

Rules: a thread that never returns holds up nothing but its own work, not even the end of the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from uma_core import threads
from uma_core.errors import UmaError, unexpected
from uma_core.server.io.loop import Loop

log = logging.getLogger(__name__)

T = TypeVar("T")


def run_aside(
    loop: Loop,
    name: str,
    work: Callable[[], T],
    done: Callable[[T | UmaError], None],
    start: Callable[[threading.Thread], threading.Thread] = threads.start,
) -> threading.Thread:
    """Run `work` on a thread; `done` gets its result, or its error, on the loop's thread.

    `start` starts the thread; if it raises INSUFFICIENT_MEMORY, `done` gets that.
    """

    def run() -> None:
        outcome: T | UmaError
        try:
            outcome = work()
        except UmaError as error:
            outcome = error
        except Exception as error:
            log.exception("%s failed", name)
            outcome = unexpected(error)
        loop.call_soon(lambda: done(outcome))

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        return start(thread)
    except UmaError as error:
        refusal = error
        loop.call_soon(lambda: done(refusal))
        return thread
