"""Files that were being written when their process was killed.

Rules: who writes one holds its lock, which the system lets go with the process. Where the file system knows no locks,
such a file is left over once nobody wrote to it for a while.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

STALE_S = 600.0


def hold(fd: int) -> None:
    """Before the first byte is written; until the descriptor is closed."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_left_over(path: str, facts: os.stat_result) -> bool:
    """Whether nobody writes it any more. `facts` are the file's. Raises: OSError."""
    is_stale = time.time() - facts.st_mtime > STALE_S
    if not facts.st_size:  # it may not be held yet
        return is_stale
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # held; whatever the clock says, which may have been set
        return False
    except OSError:  # no locks here
        return is_stale
    finally:
        os.close(fd)
    return True
