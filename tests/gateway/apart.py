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
from tests.forks import ForkServer


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


def fork_server(requirement: str, *modules: str) -> ForkServer:
    """Return a process that has imported these modules, with the package's folder first in its path."""
    return ForkServer(modules, {**os.environ, "PYTHONPATH": str(site(requirement))})
