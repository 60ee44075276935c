"""Recognises files that were being written when their process was killed.

Rules: the writer of a file holds its lock, which the system releases when the process ends. If the file system has no
locks, a file counts as left over when nothing has been written to it for a while.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

STALE_S = 600.0


def hold(fd: int) -> None:
    """Lock the file before its first byte is written, until the descriptor is closed."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_left_over(path: str, facts: os.stat_result) -> bool:
    """Whether no process is writing the file any more. `facts`: its os.stat. Raises: OSError."""
    is_stale = time.time() - facts.st_mtime > STALE_S
    if not facts.st_size:  # its writer may not have locked it yet
        return is_stale
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # locked by its writer, whatever the clock says (it may have been changed)
        return False
    except OSError:  # the file system has no locks
        return is_stale
    finally:
        os.close(fd)
    return True
