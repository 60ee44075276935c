"""SIGQUIT while other threads run Python: their stacks change while they are read without the interpreter's lock."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.forks import server_of
from uma_core.server.lifecycle.signals import QUIT_STATUS

N_PROCESSES = 10
IMPORTED = ("uma_core.server.io.loop", "uma_core.server.lifecycle.signals")


def test_a_dump_beside_busy_threads_ends_with_its_own_status(tmp_path: Path) -> None:
    for i in range(N_PROCESSES):
        with (tmp_path / str(i)).open("w+") as errors:
            process = server_of(*IMPORTED).start(
                "tests.server.lifecycle.busy", (), stderr=errors.fileno(), has_pipes=True
            )
            assert process.stdin is not None and process.stdout is not None
            with process.stdin, process.stdout:
                assert process.stdout.readline() == b"ready\n"
                process.send_signal(signal.SIGQUIT)
                status = process.wait(60)
            errors.seek(0)
            stacks = errors.read()
            assert status == QUIT_STATUS, stacks[-2000:]
            assert stacks.count("hread 0x") >= 5
