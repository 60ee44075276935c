"""Reads files where other users may have put something else: never blocks, and reads no more than needed."""

from __future__ import annotations

import errno
import os
import stat


def read_regular(path: str | os.PathLike[str], n_most: int) -> bytes:
    """Return a file's bytes; of a larger file, the first `n_most` + 1. Other kinds of file are refused, because a pipe
    or a device could block its reader forever, or never end. Raises: OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        with open(fd, "rb", closefd=False) as file:
            return file.read(n_most + 1)
    finally:
        os.close(fd)
