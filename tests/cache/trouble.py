"""System calls that fail as on a full or read-only disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from uma_core.cache import disk


def failing(number: int) -> Callable[..., None]:
    """Return a system call that fails with this errno."""

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def make_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cache's files be opened only for reading."""
    real_open = os.open

    def read_only(path: str, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_CREAT):
            failing(errno.EROFS)()
        return real_open(path, flags, *rest)

    monkeypatch.setattr(disk.os, "open", read_only)
