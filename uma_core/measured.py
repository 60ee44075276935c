"""Where measurements of this machine outlive the daemon that made them: calibrations, comparisons of engines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


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
    temporary.write_text(json.dumps(values))
    temporary.replace(path)
