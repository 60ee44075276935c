"""Files that the daemon keeps for later starts: written whole or not at all, and read only if no other user can have
written them.

Rules: the writer of a file holds its lock, which the system releases when the process ends. So files that were being
written when their process was killed are recognised. If the file system has no locks, a file counts as left over when
nothing has been written to it for a while.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STALE_S = 600.0
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not block the thread
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def is_ours(facts: os.stat_result) -> bool:
    """Whether it is a regular file that only this user, or root, can have written."""
    is_regular = stat.S_ISREG(facts.st_mode)
    return is_regular and facts.st_uid in (os.geteuid(), 0) and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def open_ours(path: str) -> int | None:
    """Return a descriptor for reading; None: the file is not ours. Raises: OSError."""
    fd = os.open(path, _READING)
    if is_ours(os.fstat(fd)):
        return fd
    os.close(fd)
    return None


@contextmanager
def replacing(path: str) -> Iterator[int]:
    """Yield a descriptor for writing. At the end of the block, what was written replaces the file, durably; if the
    block fails, nothing is left.

    The name of the file being written ends in the suffix of `path` and `.tmp`. Raises: OSError.
    """
    stem, suffix = os.path.splitext(path)
    temporary = f"{stem}.{os.getpid()}-{secrets.token_hex(8)}{suffix}.tmp"
    fd = os.open(temporary, _WRITING, 0o600)
    try:
        hold(fd)
        yield fd
        os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    _sync_folder(os.path.dirname(path))


def _sync_folder(folder: str) -> None:
    """Make a new name durable. If directories cannot be synced, the system decides when that happens."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def hold(fd: int) -> None:
    """Lock the file before its first byte is written, until the descriptor is closed."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_left_over(path: str, facts: os.stat_result) -> bool:
    """Whether no process is writing the file any more. `facts`: its os.stat. Raises: OSError."""
    is_stale = time.time() - facts.st_mtime > STALE_S
    if not facts.st_size:  # its writer may not have locked it yet
        return is_stale
    fd = os.open(path, _READING)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # locked by its writer, whatever the clock says (it may have been changed)
        return False
    except OSError:  # the file system has no locks
        return is_stale
    finally:
        os.close(fd)
    return True
