"""Files that others may have put where one of ours is looked for: read without waiting, and no more than is wanted."""

from __future__ import annotations

import errno
import os
import stat


def read_regular(path: str | os.PathLike[str], n_most: int) -> bytes:
    """A file's bytes; of a larger file, one more than `n_most`. A pipe or a device could keep its reader for ever, or
    never end. Raises: OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        with open(fd, "rb", closefd=False) as file:
            return file.read(n_most + 1)
    finally:
        os.close(fd)
