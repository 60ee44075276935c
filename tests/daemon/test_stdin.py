"""`--stop-at-eof`: the daemon ends when its standard input does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.daemon.support import ROOT, WAIT_S, Stream, eventually, is_ready
from tests.folders import short_folder

pytestmark = pytest.mark.daemon
COMMAND = [sys.executable, "-m", "uma_core", "daemon", "--engine", "fake", "--calibrate", "off", "--stop-at-eof"]


def test_what_runs_may_end_when_standard_input_closes_and_then_the_daemon_does() -> None:
    with short_folder() as folder:
        path = folder / "s"
        command = [*COMMAND, "--model", "step-20ms", "--socket", str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
            assert process.stdin is not None
            eventually(lambda: is_ready(path), "it never was ready")
            process.stdin.write(b"what is written means nothing\n")
            process.stdin.flush()
            stream = Stream(str(path), max_tokens=30).begun()
            process.stdin.close()
            assert stream.end()["reason"] == "length"
            assert process.wait(WAIT_S) == 0
        assert not path.exists()


def test_without_anything_to_read_it_ends_at_once_and_without_standard_input_it_does_not_start() -> None:
    with short_folder() as folder:
        command = [*COMMAND, "--socket", str(folder / "s")]
        empty = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, cwd=ROOT, timeout=WAIT_S)
        assert empty.returncode == 0 and b"standard input closed" in empty.stderr
        none = subprocess.run(
            ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, cwd=ROOT, timeout=WAIT_S
        )
        assert none.returncode != 0 and b"ipc.stop_at_eof" in none.stderr
