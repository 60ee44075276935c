"""Starts threads, and reports it if the system allows no more (`ulimit -u`, TasksMax, pids.max, memory)."""

from __future__ import annotations

import threading

from uma_core.errors import ErrorCode, UmaError

REFUSAL = "can't start new thread"  # the text of Python's RuntimeError
WORDS = "the system allows no more threads (ulimit -u, TasksMax, memory)"


def is_refusal(error: Exception) -> bool:
    """Whether an error, also of a library's own thread, means that the system allows no more threads."""
    return isinstance(error, RuntimeError) and str(error) == REFUSAL


def start(thread: threading.Thread) -> threading.Thread:
    """Start a thread. Raises: INSUFFICIENT_MEMORY."""
    try:
        thread.start()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_refusal(error):  # such as a thread that was started before
            raise
        text = f"the system allows no thread for {thread.name!r} (ulimit -u, TasksMax, memory)"
        raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, text) from error
    return thread
