"""Packages that cannot be installed beside the suite's own are installed in a folder of the build cache. Programs that
use them run with that folder first in their path.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from native import cache


def site(requirement: str) -> Path:
    """Return the folder with a pinned package and everything it needs.

    Blocks: seconds, at the first call on a machine. Raises: CalledProcessError.
    """
    facts: dict[str, object] = {"requirement": requirement, "python": sys.version, "machine": platform.machine()}

    def produce(entry: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
            str(entry / "site"),
            requirement,
        ]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    root = cache.cache_root()
    entry = cache.get_or_build(root, "test-client", facts, produce, lambda note: None)
    cache.prune(root, "test-client", 4)
    return entry / "site"


def command_of(requirement: str, script: Path, *args: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(site(requirement))}
    return subprocess.Popen(
        [sys.executable, str(script), *args], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
