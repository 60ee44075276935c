"""A daemon whose gateway is forked, too: `MODULE daemon …`, then the number of the fork server's socket.

A gateway's own start would take 0.7 s of a core, and a check of its options 0.3 s.
"""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.forks import Forked, Forks
from uma_core.server.lifecycle import gateway


def pid_path(socket_path: str) -> Path:
    """Return the file that tells a forked gateway's process: the daemon is not its parent."""
    return Path(f"{socket_path}.gateway")


def install(forks: Forks) -> None:
    """Let the daemon start its gateway from this fork server."""

    def start(
        command: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], start_new_session: bool, **_: Any
    ) -> Forked:
        args = command[3:]  # after `python -m uma_gateway`
        started = forks.start(
            "tests.gateway.child", args, stderr=2, environ=env, start_new_session=start_new_session, pass_fds=pass_fds
        )
        pid_path(args[args.index("--socket") + 1]).write_text(str(started.pid))
        return started

    def run(command: Sequence[str], *, timeout: float, **_: Any) -> subprocess.CompletedProcess[bytes]:
        with os.fdopen(os.memfd_create("errors"), "w+b") as errors:
            status = forks.start("uma_gateway", command[3:], stderr=errors.fileno()).wait(timeout)
            errors.seek(0)
            return subprocess.CompletedProcess(command, status, b"", errors.read())

    gateway.subprocess = SimpleNamespace(  # type: ignore[assignment]
        Popen=start, run=run, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )


if __name__ == "__main__":
    install(Forks(socket.socket(fileno=int(sys.argv.pop()))))
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
