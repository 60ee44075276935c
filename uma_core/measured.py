"""Stores measurements of this machine for later starts: calibrations and engine comparisons.

Rules: only what this user, or root, can have written is read. The checksum finds damage, but anybody can compute it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from uma_core.kept_files import open_ours, replacing

MAX_BYTES = 1 << 20  # of one file; ours have a few KiB


def folder() -> Path:
    """Return the folder of calibrations. It need not exist. Raises: FileNotFoundError, as `home` does."""
    return home() / "calibration"


def home() -> Path:
    """Return UMA_BUILD_CACHE, which also holds the builds for this machine, else our folder in the user's cache.

    It need not exist. Raises: FileNotFoundError for a user without a home folder, such as a container's.
    """
    given, folder = os.environ.get("UMA_BUILD_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):  # XDG Base Directory Specification: a relative path is ignored
        folder = "~/.cache"
    found = os.path.expanduser(given or os.path.join(folder, "uma-serve"))
    if found.startswith("~"):  # it would be created in the working directory, where others may write
        raise FileNotFoundError(errno.ENOENT, "this user has no home folder: set HOME or XDG_CACHE_HOME")
    return Path(found)


def save(path: Path, values: dict[str, Any]) -> None:
    """Replace the whole file. Raises: OSError, which is harmless: a lost measurement is repeated."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    with replacing(str(path)) as fd, open(fd, "wb", closefd=False) as file:
        file.write(json.dumps({"check": _check(path, values), "values": values}).encode())


def load(path: Path) -> dict[str, Any]:
    """Return exactly what `save` wrote: a single wrong digit could make a tick run forever.

    Raises: FileNotFoundError, OSError, ValueError.
    """
    fd = open_ours(str(path))
    if fd is None:
        raise ValueError("not a regular file that only this user can write")
    with open(fd, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError("larger than any of ours")
    try:
        stored = json.loads(data)
        values: dict[str, Any] = stored["values"]
        is_ours = isinstance(values, dict) and stored["check"] == _check(path, values)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not one of ours: {error!r}") from error
    if not is_ours:
        raise ValueError("it was changed, or copied from another file")
    return values


def _check(path: Path, values: dict[str, Any]) -> str:
    """Return the checksum. It includes the file's name, so that a file copied over another one is not accepted."""
    return hashlib.sha256(f"{path.name} {json.dumps(values)}".encode()).hexdigest()
