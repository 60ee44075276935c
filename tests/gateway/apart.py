"""Packages that cannot be installed beside the suite's own, in a folder of the build cache; programs of theirs run
with it in front.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from native import cache


def site(requirement: str) -> Path:
    """The folder of a pinned package and all that it needs.

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
