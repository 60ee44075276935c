"""The daemon under test: a separate process on the small models, and the system's figures about it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from perf.proc import Resident, resident, usage
from perf.servers import asked_to_end
from uma_ctl.client import Client, Event
from uma_ctl.errors import CtlError

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "uma_core" / "models" / "uma-work-q8_0.gguf"
MOE = ROOT / "tests" / "data" / "models" / "uma-moe-q8_0.gguf"
START_S = 120.0
POLL_S = 0.05
KEPT_LOG = Path("perf/out/reliability.log")

BASE: dict[str, dict[str, Any]] = {
    "engine": {"threads": 1, "n_ctx": 4096, "n_ubatch": 128, "calibrate": "off"},
    # full within minutes: from then on the cache's index takes the same memory
    "cache": {"ram_mb": 32, "disk_mb": 128},
    "limits": {"max_sessions": 24, "queue_interactive": 16, "queue_background": 16},
    "ipc": {"tx_soft_bytes": 8192, "tx_hard_bytes": 65536, "write_timeout_ms": 3000},
}


class Failed(Exception):
    """The daemon did not do something that all trials need."""


class Daemon:
    """One process with its own socket and configuration file."""

    def __init__(self, folder: Path, n_seq: int = 4) -> None:
        self.folder = folder
        self.path = str(folder / "uma.sock")
        self.config = folder / "config.yaml"
        self.n_starts = 0
        self._n_seq = n_seq
        self.configure()
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, **sections: dict[str, Any]) -> None:
        """Write the configuration file; a reload reads it."""
        merged = {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in {**BASE, **sections}}
        lines = [
            f"{name}:\n" + "".join(f"  {key}: {value}\n" for key, value in values.items())
            for name, values in merged.items()
        ]
        self.config.write_text("".join(lines))

    def start(self, *flags: str) -> float:
        """Start the daemon and wait until it is ready; returns the milliseconds that it reports for its start."""
        command = [sys.executable, "-m", "uma_core", "daemon", "--socket", self.path, "--config", str(self.config)]
        command += ["--model", str(TINY), "--parallel", str(self._n_seq), *flags]
        environ = {**os.environ, "UMA_BUILD_CACHE": str(self.folder / "cache")}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.n_starts += 1
        self.wait_until(self._is_ready)
        return float(self.status()["start_ms"])

    def _is_ready(self) -> bool:
        """Whether this process answers."""
        status = self.status()
        return bool(status["state"] == "ready" and status["pid"] == self.pid)

    @property
    def log_path(self) -> Path:
        return self.folder / "log"

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. Raises: Failed."""
        deadline = time.monotonic() + START_S
        while not self._holds(condition):
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(
                    "the daemon is not in the expected state:\n" + self.log_path.read_text(errors="replace")[-3000:]
                )
            time.sleep(POLL_S)

    @staticmethod
    def _holds(condition: Callable[[], bool]) -> bool:
        try:
            return condition()
        except (CtlError, OSError):
            return False

    def ask(self, operation: str, timeout_s: float = 120.0, **fields: Any) -> Event:
        with Client(self.path, timeout_s) as client:
            return client.call(operation, **fields)

    def status(self) -> Event:
        return self.ask("status")

    def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = self.ask("metrics")["metrics"]
        return metrics

    def is_idle(self) -> bool:
        status = self.status()
        return not status["retiring"] and not any(
            n for phase, n in status["sessions"].items() if phase != "connections"
        )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def rss_mb(self) -> float:
        return usage(self.pid).rss_mb

    def resident(self) -> Resident:
        return resident(self.pid)

    def cpu_s(self) -> float:
        return usage(self.pid).cpu_s

    def n_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> int:
        """End the daemon and return its exit status. Idempotent."""
        if self.process is None:
            return 0
        for number in (signal.SIGTERM, signal.SIGINT):  # the second skips the drain; two of one kind could merge
            self.signal(number)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def log_errors(self) -> list[str]:
        """Return lines of the log that only a bug writes: our own tracebacks, violations, and failed callbacks."""
        marks = (
            "Traceback",
            "callback failed",
            "a second final event",
            "outside of acceptance",
            "tick failed",
            "turn of the compute",
        )
        return [
            line
            for line in self.log_path.read_text(errors="replace").splitlines()
            if any(mark in line for mark in marks)
        ]


@contextlib.contextmanager
def running(n_seq: int = 4, *flags: str) -> Iterator[Daemon]:
    """A daemon in a temporary folder; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="uma-r-"))
    daemon = Daemon(folder, n_seq)
    with asked_to_end():
        try:
            daemon.start(*flags)
            yield daemon
        finally:
            daemon.stop()
            KEPT_LOG.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(daemon.log_path, KEPT_LOG)  # of the last trial, to be read if it failed
            shutil.rmtree(folder)
