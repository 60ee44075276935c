"""Standard input as a lifeline: the program that started the daemon holds the other end of a pipe, which closes however
that program ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from uma_core import threads
from uma_core.errors import ErrorCode, UmaError

PIECE = 4096  # bytes to read at a time; they are discarded


def watch(on_end: Callable[[], None]) -> None:
    """Call `on_end`, from a thread of its own, when standard input ends. Raises: CONFIG_INVALID where there is none.

    A thread, because /dev/null and files, which are at their end at once, cannot be waited for with epoll.
    """
    if sys.stdin is None:  # its number may be that of a socket by now
        raise UmaError(ErrorCode.CONFIG_INVALID, "ipc.stop_at_eof needs a standard input, and it is closed")
    fd = sys.stdin.fileno()

    def wait() -> None:
        with suppress(OSError):  # such as EIO from a terminal that is gone
            while os.read(fd, PIECE):
                pass
        on_end()

    threads.start(threading.Thread(target=wait, name="stdin", daemon=True))
