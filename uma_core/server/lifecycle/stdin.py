"""Standard input as a lifeline: the program that started the daemon holds the other end of a pipe, which closes
whenever that program ends.
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
    """Call `on_end`, from a thread of its own, when standard input ends. Raises: CONFIG_INVALID if there is none.

    It needs a thread because epoll cannot wait for /dev/null and regular files, which end at once.
    """
    if sys.stdin is None:  # its descriptor may be a socket's by now
        raise UmaError(ErrorCode.CONFIG_INVALID, "ipc.stop_at_eof needs standard input, which is closed")
    fd = sys.stdin.fileno()

    def wait() -> None:
        with suppress(OSError):  # such as EIO from a terminal that is gone
            while os.read(fd, PIECE):
                pass
        on_end()

    threads.start(threading.Thread(target=wait, name="stdin", daemon=True))
