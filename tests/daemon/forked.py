"""Daemons by the hundred: each is a fork of one process that has imported everything, so that a start costs no import.

What happens after the fork is the product's own code, from the command line on; the exit status, or the signal, is the
daemon's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.daemon.support import ROOT, Event, Wire

LONGEST_S = 300.0  # a start, an answer or a stop that takes longer is a hang, even with 1,000 threads on a busy machine
ANSWERED = {"stop", "length"}


class Outcome(NamedTuple):
    """What became of one daemon.

    `status` is as subprocess has it: negative for a signal; None where it hung, and was killed.
    """

    status: int | None
    where: str  # it ended, or hung: at the start, in its answers, at the stop
    reasons: tuple[str, ...]  # how its requests ended: a reason, or an error's code
    log: str

    @property
    def code(self) -> str:
        """Of the error that it ended with; "" where there was none."""
        codes = re.findall(r"\bE_[A-Z]+_\d+", self.log)  # a preset may have the log in JSON
        return codes[-1] if codes and self.status else ""

    @property
    def is_sound(self) -> bool:
        """Served and stopped, or refused with a code; a traceback in the log is neither."""
        return "Traceback" not in self.log and (
            (self.status == 0 and bool(self.reasons)) or (self.status == 1 and bool(self.code))
        )


class Nursery:
    """Forks daemons one at a time; `run` lives one's whole life."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._status: int | None = 0  # of the daemon that runs, or ran last; None while it runs
        environ = {name: value for name, value in os.environ.items() if not name.startswith("UMA_")}
        environ |= {"XDG_CACHE_HOME": str(folder / "home"), "GOMP_SPINCOUNT": "0", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.daemon.forked"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
        )
        assert self._read(LONGEST_S) == {"ready": True}

    def run(self, model: Path, flags: Mapping[str, object], data_bytes: int = 0) -> Outcome:
        """Start a daemon, let it answer a few requests once it is ready, stop it.

        `data_bytes`: its limit of private memory, 0: none.
        """
        self._stop_what_runs()
        self._pid = self._fork(
            ["daemon", "--socket", self._socket, "--model", str(model), *as_arguments(flags)], data_bytes
        )
        status, reasons = self._reach_ready(), ()
        if status == "ready":
            try:
                reasons = ask(self._socket)
            except (OSError, EOFError):
                return self._end("in its answers", LONGEST_S / 10, ())
            os.kill(self._pid, signal.SIGTERM)
            return self._end("at the stop", LONGEST_S, reasons)
        return self._end("at the start", 0.0, ())

    @property
    def _socket(self) -> str:
        return str(self._folder / "s")

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _fork(self, argv: list[str], data_bytes: int) -> int:
        self._log.unlink(missing_ok=True)
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"argv": argv, "log": str(self._log), "data_bytes": data_bytes}).encode() + b"\n"
        )
        self._process.stdin.flush()
        self._status = None
        return int(self._read(LONGEST_S)["pid"])

    def _has_ended(self, seconds: float) -> bool:
        if self._status is None:
            self._status = self._read(seconds).get("status")
        return self._status is not None

    def _reach_ready(self) -> str:
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline and not self._has_ended(0.01):
            with contextlib.suppress(OSError, EOFError), Wire(self._socket) as wire:
                wire.sock.settimeout(LONGEST_S)
                if wire.ask("health")["state"] == "ready":
                    return "ready"
        return "ended" if self._status is not None else "hung"

    def _end(self, where: str, seconds: float, reasons: tuple[str, ...]) -> Outcome:
        is_ended = self._has_ended(seconds)
        self._stop_what_runs()
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        return Outcome(self._status if is_ended else None, where, reasons, log)

    def _stop_what_runs(self) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            self._has_ended(LONGEST_S)

    def _read(self, seconds: float) -> dict[str, Any]:
        """The next line of the process that forks; {} where none comes in time."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return {}
        line = self._process.stdout.readline()
        assert line, "the process that forks has ended"
        return json.loads(line)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._stop_what_runs()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    with tempfile.TemporaryDirectory(prefix="uma-f-") as folder:
        made = Nursery(Path(folder))
        try:
            yield made
        finally:
            made.close()


def as_arguments(flags: Mapping[str, object]) -> list[str]:
    """{"--n-batch": 33, "--cpu-kernels": False} as the command line has it."""
    out: list[str] = []
    for flag, value in flags.items():
        out += [flag if value else f"--no-{flag[2:]}"] if isinstance(value, bool) else [flag, str(value)]
    return out


def ask(path: str) -> tuple[str, ...]:
    """Three requests at once, of different lengths and priorities; how each ended."""
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


# the process that is forked


def fork_on_request() -> None:
    """Fork a daemon for every line on stdin, tell its pid, wait for its end, tell its status.

    Ends with stdin, and ends what still runs.
    """
    import uma_core.engine.graph.engine
    import uma_core.engine.llama.engine
    import uma_core.engine.select.compare
    import uma_core.server.lifecycle.daemon  # noqa: F401 -- what a start would import

    tell({"ready": True})
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            be_daemon(json.loads(line))
        tell({"pid": pid})
        _, status = os.waitpid(pid, 0)
        tell({"status": os.waitstatus_to_exitcode(status)})


def tell(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def be_daemon(order: dict[str, Any]) -> None:
    """Never returns."""
    import resource

    from uma_core import cli

    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    for fd, target in ((null, 0), (null, 1), (log, 2)):
        os.dup2(fd, target)
    os.closerange(3, 256)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if order["data_bytes"]:
        resource.setrlimit(resource.RLIMIT_DATA, (order["data_bytes"],) * 2)
    sys.argv = ["uma-core", *order["argv"]]
    status = 70  # of an exception that nobody caught
    try:
        status = cli.main()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    fork_on_request()
