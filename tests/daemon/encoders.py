"""Daemons on encoders with random weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.daemon.support import DaemonProcess, running
from tests.engine.encoders import ENCODERS, write


@contextlib.contextmanager
def encoder(folder: Path, name: str) -> Iterator[DaemonProcess]:
    """Start a daemon on an encoder."""
    path = write(ENCODERS[name], folder / f"{name}.gguf")
    flags = ("--threads", "1", "--n-ubatch", "64")
    with running(folder, "--model", path, *flags, path=str(folder / f"{name}.sock")) as daemon:
        yield daemon
