"""Starting a thread, where the system may allow no more of them (`ulimit -u`, TasksMax, pids.max, memory)."""

from __future__ import annotations

import threading

from uma_core.errors import ErrorCode, UmaError

REFUSAL = "can't start new thread"  # what Python's RuntimeError says
WORDS = "the system allows no further thread (ulimit -u, TasksMax, memory)"


def is_refusal(error: Exception) -> bool:
    """Whether the error, of a library's own thread too, says that the system allows no more of them."""
    return isinstance(error, RuntimeError) and str(error) == REFUSAL


def start(thread: threading.Thread) -> threading.Thread:
    """Start it. Raises: INSUFFICIENT_MEMORY."""
    try:
        thread.start()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_refusal(error):  # such as one that was started before
            raise
        text = f"the system allows no thread for {thread.name!r} (ulimit -u, TasksMax, memory)"
        raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, text) from error
    return thread
