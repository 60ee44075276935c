"""Runs commands of `uma-ctl` and `uma-cli` in processes that are forked: a start of the interpreter takes longer than
what they do.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
from collections.abc import Mapping

from tests.forks import Forked, server_of
from uma_ctl.main import COMMANDS

IMPORTED = ("uma_ctl.main", *(f"uma_ctl.commands.{verb}" for verb in COMMANDS))
WAIT_S = 60.0


def run(
    module: str,
    *args: str,
    environment: Mapping[str, str] | None = None,
    input: str = "",
    **descriptors: int,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGS` to its end. `descriptors`: `stdin` or `stdout` in place of a pipe."""
    with tempfile.TemporaryFile() as errors:
        process = server_of(*IMPORTED).start(
            module, args, stderr=errors.fileno(), environ=environment, has_pipes=not descriptors, **descriptors
        )
        end = threading.Timer(WAIT_S, process.kill)
        end.start()
        output = b"" if descriptors else answer(process, input.encode())
        status = process.wait(WAIT_S)
        end.cancel()
        errors.seek(0)
        return subprocess.CompletedProcess([module, *args], status, output.decode(), errors.read().decode())


def answer(process: Forked, input: bytes) -> bytes:
    """Return all that a command writes after it was given `input`."""
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, contextlib.suppress(BrokenPipeError):  # a command that reads nothing has ended
        process.stdin.write(input)
        process.stdin.flush()
    with process.stdout:
        return process.stdout.read()
