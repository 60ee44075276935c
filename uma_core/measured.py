"""Where measurements of this machine outlive the daemon that made them: calibrations, comparisons of engines."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from uma_core.regular import read_regular

MAX_BYTES = 1 << 20  # of one file; ours have a few KiB


def folder() -> Path:
    """Of calibrations. It need not exist."""
    return home() / "calibration"


def home() -> Path:
    """UMA_BUILD_CACHE, where builds for this machine are too, else a folder of ours in the user's cache.

    It need not exist.
    """
    given, folder = os.environ.get("UMA_BUILD_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):  # XDG Base Directory Specification: such a one does not count
        folder = os.path.expanduser("~/.cache")
    return Path(given or os.path.join(folder, "uma-serve"))


def save(path: Path, values: dict[str, Any]) -> None:
    """Replace the file whole. Raises: OSError; losing a measurement costs no more than making it again."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.write_text(json.dumps({"check": _check(path, values), "values": values}))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def load(path: Path) -> dict[str, Any]:
    """What `save` wrote there, and nothing else: one wrong digit could be a split into calls with which a tick never
    ends.

    Raises: FileNotFoundError, OSError, ValueError.
    """
    data = read_regular(path, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise ValueError("larger than any of ours")
    try:
        stored = json.loads(data)
        values: dict[str, Any] = stored["values"]
        is_ours = isinstance(values, dict) and stored["check"] == _check(path, values)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not one of ours: {error!r}") from error
    if not is_ours:
        raise ValueError("it was changed, or is that of another file")
    return values


def _check(path: Path, values: dict[str, Any]) -> str:
    """The name is part of the hash, so a file that was copied over another one is not accepted."""
    return hashlib.sha256(f"{path.name} {json.dumps(values)}".encode()).hexdigest()
