"""A process with limited memory (ulimit -d) either serves or refuses to load with a code. A running daemon loses
snapshots, but no requests.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.forked import ANSWERED, Nursery
from tests.daemon.support import DRAFT, ROOT, TINY, running

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="RLIMIT_DATA counts mappings on Linux only"
)

MIB = 1 << 20
IS_FULL = os.environ.get("UMA_FUZZ") == "full"
MODEL = TINY if IS_FULL else DRAFT
LIMITS_MB = range(100, 560, 4) if IS_FULL else range(100, 460, 40)  # with 380 MiB both engines serve


@pytest.mark.fuzz
@pytest.mark.parametrize("engine", ["llama", "graph"])
@pytest.mark.parametrize("limit_mb", LIMITS_MB)
def test_any_limit_gives_a_code_or_a_daemon_that_serves(daemons: Nursery, limit_mb: int, engine: str) -> None:
    outcome = daemons.run(MODEL, {"--engine": engine, "--calibrate": "off", "--threads": 2}, limit_mb * MIB)
    assert outcome.is_sound, outcome
    assert outcome.code in ("", "E_MODEL_004"), outcome
    assert set(outcome.reasons) <= ANSWERED, outcome


@pytest.mark.parametrize("limit_mb", [80, 100, 120, 140])
def test_a_limit_below_what_the_interpreter_takes(folder: Path, limit_mb: int) -> None:
    """It runs in a separate process, so that the limit also covers its imports."""
    command = (
        f"ulimit -d {limit_mb * 1024}; exec {sys.executable} -m uma_core daemon --socket {folder / 's'} --model {TINY}"
    )
    done = subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "E_MODEL_004" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_threads_that_the_system_does_not_start(daemons: Nursery) -> None:
    """OpenMP by itself would end the process without any message."""
    outcome = daemons.run(
        DRAFT, {"--threads": 300, "--calibrate": "off", "--n-ctx": 1024, "--engine": "llama"}, 900 * MIB
    )
    assert (outcome.status, outcome.code) == (1, "E_MODEL_004"), outcome


@pytest.mark.parametrize("engine", ["llama", "graph"])
@pytest.mark.parametrize("room_kb", [0, 300, 2000])
def test_no_memory_for_snapshots_ends_no_request(folder: Path, engine: str, room_kb: int) -> None:
    options = (
        "--engine",
        engine,
        "--model",
        str(TINY),
        "--threads",
        "1",
        "--n-ctx",
        "4096",
        "--parallel",
        "2",
        "--calibrate",
        "off",
    )
    with running(folder, *options) as daemon:
        daemon.generate("x", max_tokens=2)
        pid = daemon.process.pid
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        limit = (int(status["VmData"].split()[0]) + room_kb) * 1024
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
        finals = [daemon.generate(f"{i} " + f"word{i} " * 150, max_tokens=8)[-1] for i in range(5)]  # 2 MiB hold two
        assert [final.get("reason") for final in finals] == ["length"] * 5, finals
        assert "could not make a snapshot" in daemon.log
