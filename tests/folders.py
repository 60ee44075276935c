"""Temporary folders."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a short path, because the path of a Unix socket must be short."""
    with tempfile.TemporaryDirectory(prefix="uma-t-", ignore_cleanup_errors=True) as path:
        yield Path(path)
