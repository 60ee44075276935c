"""Work that may block, on threads of its own; its end is reported on the loop's thread.

Rules: a thread that never comes back costs its own work and nothing else, the end of the process included.
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


def run_aside(loop: Loop, name: str, work: Callable[[], T], done: Callable[[T | UmaError], None]) -> threading.Thread:
    """Start `work` on a thread; `done` gets its result, or the error that it ended with, on the loop's thread."""

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
        return threads.start(thread)
    except UmaError as error:
        refusal = error
        loop.call_soon(lambda: done(refusal))
        return thread
