"""A small supervisor. It speaks sd_notify(3), passes listening sockets, and judges the watchdog as systemd does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.daemon.support import ROOT, WAIT_S

Message = dict[str, str]


class Supervisor:
    """Owns the notification socket. `messages` holds all messages, in order."""

    def __init__(self, folder: Path, is_abstract: bool = False) -> None:
        self.address = f"@uma-test-{os.getpid()}-{time.monotonic_ns()}" if is_abstract else str(folder / "notify")
        self.messages: list[Message] = []
        self._news = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.address[1:] if is_abstract else self.address)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def environ(self, watchdog_ms: float = 0) -> dict[str, str]:
        usec = {"WATCHDOG_USEC": str(int(watchdog_ms * 1000))} if watchdog_ms else {}
        return {"NOTIFY_SOCKET": self.address, **usec}

    def _listen(self) -> None:
        while data := self._socket.recv(4096):
            with self._news:
                self.messages.append(dict(line.split("=", 1) for line in data.decode().splitlines()))
                self._news.notify_all()

    def hear(self, name: str, value: str | None = None, after: int = 0) -> tuple[int, Message]:
        """Wait for a message with this assignment, at index `after` or later. Return its index and the message."""

        def find() -> tuple[int, Message] | None:
            for index, message in enumerate(self.messages[after:], after):
                if name in message and (value is None or value in message[name]):
                    return index, message
            return None

        with self._news:
            found = self._news.wait_for(find, WAIT_S)
        assert found, f"{name}={value} was not said: {self.messages}"
        return found

    def count(self, name: str) -> int:
        return sum(name in message for message in self.messages)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self._socket.getsockname())
        self._thread.join(WAIT_S)
        self._socket.close()


# LISTEN_PID can only be set once the process exists. Systemd sets it between fork and exec; here a few lines of
# Python do.
EXEC_WITH_SOCKET = """
import os, sys
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
fd = int(sys.argv[1])
if fd != 3:
    os.dup2(fd, 3)
os.set_inheritable(3, True)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def start_with_descriptor(number: int, *args: str, **spawn: Any) -> subprocess.Popen[bytes]:
    """Start a daemon on the simulated engine, and pass a descriptor to it as systemd passes a socket."""
    command = [sys.executable, "-c", EXEC_WITH_SOCKET, str(number), "-m", "uma_core", "daemon", "--engine", "fake"]
    return subprocess.Popen([*command, *args], cwd=ROOT, pass_fds=[number], stderr=subprocess.PIPE, **spawn)
