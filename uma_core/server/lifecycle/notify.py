"""Messages to a supervisor: sd_notify(3). Sends nothing if no supervisor asked for them.

Rules: nothing here blocks or fails the daemon; a supervisor that does not read loses messages.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger(__name__)

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Sends datagrams to $NOTIFY_SOCKET.

    `watchdog_ns`: how often the supervisor wants a sign of life; 0: never.
    """

    def __init__(self, environ: MutableMapping[str, str], pid: int) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog_ns = _watchdog_ns(environ, pid) if self._address else 0
        for name in VARIABLES:
            environ.pop(name, None)  # child processes must not speak for the daemon
        self._socket: socket.socket | None = None
        if self._address[:1] in ("/", "@"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        elif self._address:
            log.warning("NOTIFY_SOCKET is neither a path nor an abstract name: %s", self._address)

    @property
    def is_heard(self) -> bool:
        return self._socket is not None

    def send(self, **fields: str | int) -> None:
        """Send assignments, in order, as one message."""
        if self._socket is None:
            return
        message = "\n".join(f"{name}={' '.join(str(value).split())}" for name, value in fields.items())
        try:
            self._socket.sendto(
                message.encode(errors="replace"), "\0" + self._address[1:] if self._address[0] == "@" else self._address
            )
        except OSError as error:
            log.warning("cannot send %s to the supervisor: %s", next(iter(fields)), error)

    def reloading(self, status: str) -> None:
        """Source: systemd.service(5), Type=notify-reload: the time distinguishes this reload from earlier ones."""
        self.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000, STATUS=status)

    def extend(self, ns: int) -> None:
        """Ask for this much time, from now, before a start or stop counts as failed."""
        self.send(EXTEND_TIMEOUT_USEC=ns // 1000)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _watchdog_ns(environ: MutableMapping[str, str], pid: int) -> int:
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0
    try:
        return max(0, int(environ.get("WATCHDOG_USEC", "0"))) * 1000
    except ValueError:
        log.warning("WATCHDOG_USEC is not a number: %s", environ["WATCHDOG_USEC"])
        return 0
