"""Processes that are forked from one that has already imported the product, so that a start costs no import.

After the fork, only the product's own code runs, from the command line on. A daemon's imports take 0.6 s of a core (AMD
EPYC). That is more than most tests take for the rest, and the suite starts some hundreds of daemons.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Order(NamedTuple):
    """What a fork shall run."""

    module: str
    args: list[str]
    environ: dict[str, str]
    has_new_session: bool
    limits: dict[int, int]
    children: str  # a module whose `install` gets what the fork can start its own processes with; "": none


class Forked:
    """A forked process, with the methods of subprocess.Popen that tests use."""

    def __init__(self, answers: socket.socket, stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
        self._answers = answers
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._reading = threading.Lock()
        weakref.finalize(self, answers.close)  # not in `wait`: another thread may be in it
        self.pid = int(self._answer()["pid"])

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            looks = select.poll()
            looks.register(self._answers, select.POLLIN)
            if not looks.poll(None if timeout is None else timeout * 1e3):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            with self._reading:  # two threads can wait for one process
                if self.returncode is None:
                    self.returncode = int(self._answer()["status"])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # the process has ended, and its status is on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _answer(self) -> dict[str, int]:
        data = b""
        while not data.endswith(b"\n"):
            byte = self._answers.recv(1)
            assert byte, "whoever waits for the process has ended"
            data += byte
        answer: dict[str, int] = json.loads(data)
        return answer


class Forks:
    """Orders forks of a fork server, at its socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def start(
        self,
        module: str,
        args: Sequence[str],
        *,
        stderr: int,
        environ: Mapping[str, str] | None = None,
        has_pipes: bool = False,
        stdin: int | None = None,
        stdout: int | None = None,
        start_new_session: bool = False,
        limits: Mapping[int, int] | None = None,
        children: str = "",
        pass_fds: Sequence[int] = (),
    ) -> Forked:
        """Run `python -m MODULE ARGS`. Standard input and output are pipes, or these descriptors, or nothing.

        `limits`: by number, as in `resource`. `pass_fds`: the fork gets them under other numbers, which follow ARGS.
        """
        order = Order(module, list(args), dict(environ or os.environ), start_new_session, dict(limits or {}), children)
        if not has_pipes:
            with open(os.devnull, "r+b") as null:
                standard = [null.fileno() if fd is None else fd for fd in (stdin, stdout)]
                return Forked(self._send(order, *standard, stderr, *pass_fds))
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        answers = self._send(order, theirs_in, theirs_out, stderr, *pass_fds)
        os.close(theirs_in)
        os.close(theirs_out)
        return Forked(answers, os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb"))

    def fileno(self) -> int:
        """Return the socket's number, for a process that shall order forks here, too."""
        return self._control.fileno()

    def _send(self, order: Order, *fds: int) -> socket.socket:
        """Send an order. Return the socket on which the process's number and status will be told."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"."], [theirs.fileno(), self._control.fileno(), *fds])
        ours.sendall(json.dumps(order).encode() + b"\n")
        return ours


class ForkServer(Forks):
    """A process that has imported `modules`, and forks on request.

    `environ` is its own environment: libraries that read the environment when they are loaded see this one.
    """

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno()), *modules],
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        self._control.shutdown(socket.SHUT_RDWR)  # forks may have the socket, too
        self._control.close()
        self._process.wait()


_servers: dict[tuple[str, ...], ForkServer] = {}
_lock = threading.Lock()


def server_of(*modules: str) -> ForkServer:
    """Return this process's fork server for these modules. It is started on the first call."""
    with _lock:
        if modules not in _servers:
            _servers[modules] = ForkServer(modules)
            atexit.register(_servers[modules].close)
        return _servers[modules]


# the code of the process that forks

MOST_FDS = 16  # in one message


class Fork(NamedTuple):
    """What a fork has got."""

    order: Order
    control: socket.socket
    passed: list[int]  # further descriptors


def serve(control: socket.socket) -> Fork | None:
    """Fork for every message. In the parent: return None once no sender is left. In a fork: return what it shall
    run.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks that wait for a status
    while fds := socket.recv_fds(control, 1, MOST_FDS)[1]:
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return fork_and_wait(socket.socket(fileno=fds[0]), fds[1:])
        close(fds)
    return None


def fork_and_wait(answers: socket.socket, fds: list[int]) -> Fork:
    """Fork, then tell the fork's number and, once it has ended, its status. Only the fork returns."""
    with answers.makefile() as orders:
        order = Order(*json.loads(orders.readline()))
    pid = os.fork()
    if pid == 0:
        answers.close()
        control, standard, passed = fds[0], fds[1:4], fds[4:]
        for target, fd in enumerate(standard):
            os.dup2(fd, target)
        close(standard)
        os.set_inheritable(control, False)
        return Fork(order, socket.socket(fileno=control), passed)
    close(fds)
    tell(answers, pid=pid)
    tell(answers, status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def tell(answers: socket.socket, **answer: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the reader has gone
        answers.sendall(json.dumps(answer).encode() + b"\n")


def become(order: Order, control: socket.socket, passed: list[int]) -> None:
    os.environ.clear()
    os.environ.update(order.environ)
    if order.has_new_session:
        os.setsid()
    for number, most in order.limits.items():
        resource.setrlimit(int(number), (most, most))
    # Python's own belong to what was open before: a file has a position, which a pipe lacks
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    if order.children:
        importlib.import_module(order.children).install(Forks(control))
    else:
        control.close()
    sys.argv = [order.module, *order.args, *map(str, passed)]
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def main() -> None:
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if fork := serve(socket.socket(fileno=int(sys.argv[1]))):
        become(*fork)


if __name__ == "__main__":
    main()
