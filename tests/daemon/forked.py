"""Start hundreds of daemons one after the other, and record what became of each."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.daemon.support import FORKED_HELPER, IMPORTED, LOOK_S, Event, Wire
from tests.folders import short_folder
from tests.forks import Forked, ForkServer

LONGEST_S = 300.0  # longer than any start, answer or stop takes with 1,000 threads on a busy machine: it is a hang
ANSWERED = {"stop", "length"}


class Outcome(NamedTuple):
    """What became of one daemon.

    `status`: as in subprocess, negative for a signal; None if the daemon hung and was killed.
    """

    status: int | None
    where: str  # phase in which it ended or hung: at the start, in its answers, at the stop
    reasons: tuple[str, ...]  # how each request ended: a reason, or an error's code
    log: str

    @property
    def code(self) -> str:
        """Return the code of the error with which the daemon ended; "" if there was none."""
        codes = re.findall(r"\bE_[A-Z]+_\d+", self.log)  # a preset may switch the log to JSON
        return codes[-1] if codes and self.status else ""

    @property
    def is_sound(self) -> bool:
        """Whether the daemon served and stopped, or refused with a code. A traceback in the log counts as neither."""
        return "Traceback" not in self.log and (
            (self.status == 0 and bool(self.reasons)) or (self.status == 1 and bool(self.code))
        )


class Nursery:
    """Starts one daemon at a time; `run` covers a daemon's whole life."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("UMA_")}
        self._environ |= {"XDG_CACHE_HOME": str(folder / "home"), "GOMP_SPINCOUNT": "0", "OPENBLAS_NUM_THREADS": "1"}
        self._forks = ForkServer(IMPORTED, self._environ)

    def run(self, model: Path, flags: Mapping[str, object], data_bytes: int = 0) -> Outcome:
        """Start a daemon, let it answer a few requests once it is ready, and stop it.

        `data_bytes`: the daemon's limit of private memory; 0: none.
        """
        limits = {resource.RLIMIT_CORE: 0} | ({resource.RLIMIT_DATA: data_bytes} if data_bytes else {})
        arguments = ["daemon", "--socket", self._socket, "--model", str(model), *as_arguments(flags)]
        with self._log.open("wb") as log:
            daemon = self._forks.start(
                "uma_core",
                arguments,
                environ=self._environ,
                stderr=log.fileno(),
                limits=limits,
                children="" if data_bytes else FORKED_HELPER,
            )
        try:
            return self._live(daemon)
        finally:
            daemon.kill()
            daemon.wait(LONGEST_S)

    def _live(self, daemon: Forked) -> Outcome:
        if not self._is_up(daemon):
            return self._outcome(daemon, 0.0, "at the start")
        try:
            reasons = ask(self._socket)
        except (OSError, EOFError):
            return self._outcome(daemon, LONGEST_S / 10, "in its answers")
        daemon.send_signal(signal.SIGTERM)
        return self._outcome(daemon, LONGEST_S, "at the stop", reasons)

    @property
    def _socket(self) -> str:
        return str(self._folder / "s")

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _is_up(self, daemon: Forked) -> bool:
        """Wait until the daemon is ready, has ended, or hangs."""
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline and daemon.poll() is None:
            with contextlib.suppress(OSError, EOFError), Wire(self._socket) as wire:
                wire.sock.settimeout(LONGEST_S)
                if wire.ask("health")["state"] == "ready":
                    return True
            time.sleep(LOOK_S)
        return False

    def _outcome(self, daemon: Forked, seconds: float, where: str, reasons: tuple[str, ...] = ()) -> Outcome:
        """`seconds`: how long to wait for the daemon's end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(seconds)
        return Outcome(daemon.returncode, where, reasons, self._log.read_text(errors="replace"))

    def close(self) -> None:
        self._forks.close()


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    with short_folder() as folder:
        made = Nursery(folder)
        try:
            yield made
        finally:
            made.close()


def as_arguments(flags: Mapping[str, object]) -> list[str]:
    """Turn {"--n-batch": 33, "--cpu-kernels": False} into command line arguments."""
    out: list[str] = []
    for flag, value in flags.items():
        out += [flag if value else f"--no-{flag[2:]}"] if isinstance(value, bool) else [flag, str(value)]
    return out


def ask(path: str) -> tuple[str, ...]:
    """Send three requests at once, of different lengths and priorities. Return how each ended."""
    with Wire(path) as wire:
        wire.sock.settimeout(LONGEST_S)
        room = int(wire.ask("status")["engine"]["n_ctx_seq"])
        n_long = max(1, min(room - 8, 700))
        wire.send(id="short", tokens=prompt(min(5, n_long), 1), max_tokens=4, ignore_eos=True)
        wire.send(id="long", tokens=prompt(n_long, 7), max_tokens=3, ignore_eos=True, priority="background")
        wire.send(id="middle", tokens=prompt(max(1, n_long // 2), 3), max_tokens=5, ignore_eos=True)
        finals: dict[str, str] = {}
        while len(finals) < 3:
            event = wire.event()
            if event["event"] in ("eos", "error"):
                assert event["id"] not in finals, "a second final event"
                finals[event["id"]] = how(event)
    return tuple(finals.values())


def how(event: Event) -> str:
    error = event if event["event"] == "error" else event.get("error") or {}
    return str(error.get("code") or event["reason"])


def prompt(n: int, stride: int) -> list[int]:
    return [40 + i * stride % 100 for i in range(n)]
