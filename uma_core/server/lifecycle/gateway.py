"""The HTTP gateway as a child of the daemon: started with it, restarted when it ends, stopped with it.

Rules: runs on the I/O thread, which never waits for the child; another thread does. The child holds one end of a socket
whose other end only the daemon has, so that it ends whenever and however the daemon does. The daemon sends a byte when
it was reloaded; the child reports once how many seconds its running answers get when it is told to stop. The child logs
to the daemon's stderr.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import threading
from typing import Any

from uma_core.config.load import GATEWAY_PREFIX
from uma_core.config.options import HttpOptions
from uma_core.own_python import python_command
from uma_core.server.io.loop import Loop, Timer
from uma_core.server.lifecycle.http_options import MAIN, flags

log = logging.getLogger(__name__)

LIFELINE = f"{GATEWAY_PREFIX}LIFELINE"  # the socket's number, for the child
RELOADED = b"\n"
FIRST_PAUSE_NS = 1_000_000_000  # before a restart; doubled each time ...
LONGEST_PAUSE_NS = 60_000_000_000  # ... up to this
PROVEN_NS = 60_000_000_000  # after this long a child counts as healthy, and the pause starts over
LATE_NS = 10_000_000_000  # a gateway that still runs this long after its answers' time hangs, and is killed
STOP_S = 3.0  # to say goodbye to its clients once the daemon no longer serves it


class Gateway:
    """`apply` starts, restarts and stops it as the configuration says."""

    def __init__(self, loop: Loop, path: str) -> None:
        self.path = path  # of the daemon's socket
        self._loop = loop
        self._options = HttpOptions()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._retry: Timer | None = None
        self._late: Timer | None = None  # set when the child was told to stop
        self._pause_ns = FIRST_PAUSE_NS
        self._t_started_ns = 0
        self._n_starts = 0
        self._is_leaving = False

    def apply(self, options: HttpOptions) -> None:
        if options == self._options:
            self._tell_of_reload()
            return
        self._options = options
        self._pause_ns = FIRST_PAUSE_NS
        if self._process is not None:
            self._tell_to_end()  # when it has ended, the next one starts
        elif options.port:
            self._start()

    def _tell_of_reload(self) -> None:
        """Have the gateway read its keys and certificate again, so that reloading the daemon is enough."""
        if self._lifeline >= 0:
            with contextlib.suppress(BlockingIOError, ConnectionError):  # it has not read for long, or has just ended
                os.write(self._lifeline, RELOADED)

    def report(self) -> dict[str, Any] | None:
        """Return the entry for `status`; None if no gateway is configured."""
        if not self._options.port:
            return None
        running = self._process is not None
        return {
            "host": self._options.host,
            "port": self._options.port,
            "is_running": running,
            "restarts": max(0, self._n_starts - 1),
        }

    def close(self) -> None:
        """Stop it. Blocks for at most STOP_S."""
        self._is_leaving = True
        if self._retry is not None:
            self._retry.cancel()
        process = self._process
        self._hang_up()
        if process is None:
            return
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        if self._retry is not None:  # a reload can start it before the pause is over
            self._retry.cancel()
            self._retry = None
        if self._is_leaving or self._process is not None or not self._options.port:
            return
        try:
            self._process = self._spawn()
        except (OSError, RuntimeError) as error:
            log.error("the HTTP gateway cannot be started: %s", error)
            self._hang_up()
            self._again()
            return
        self._n_starts += 1
        self._t_started_ns = self._loop.clock.now_ns()

    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the child, and a thread that waits for its end.

        Raises: OSError, also if descriptors run out; RuntimeError if no thread can start.
        """
        near, far = socket.socketpair()
        near.setblocking(False)
        self._lifeline = near.detach()
        with far:
            process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, LIFELINE: str(far.fileno())},
                pass_fds=(far.fileno(),),
                start_new_session=True,  # Ctrl-C in the terminal drains the daemon while the gateway still runs
            )
        try:
            threading.Thread(target=self._wait, args=(process,), name="gateway", daemon=True).start()
        except RuntimeError:
            process.kill()
            process.wait()
            raise
        return process

    def _command(self) -> list[str]:
        return [*python_command(MAIN), "serve", "--socket", self.path, *flags(self._options)]

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        self._loop.call_soon(lambda: self._ended(process, status))

    def _ended(self, process: subprocess.Popen[bytes], status: int) -> None:
        if process is not self._process:
            return
        was_told = self._lifeline < 0
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._hang_up()
        self._process = None
        if self._is_leaving:
            return
        if was_told:
            self._start()
            return
        if self._loop.clock.now_ns() - self._t_started_ns > PROVEN_NS:
            self._pause_ns = FIRST_PAUSE_NS
        log.error("the HTTP gateway ended with status %d; restarting it in %.0f s", status, self._pause_ns / 1e9)
        self._again()

    def _again(self) -> None:
        self._retry = self._loop.call_later(self._pause_ns, self._start)
        self._pause_ns = min(2 * self._pause_ns, LONGEST_PAUSE_NS)

    def _tell_to_end(self) -> None:
        """Tell the child to stop: its running answers get their time; one that hangs is killed."""
        if self._lifeline >= 0:
            self._late = self._loop.call_later(self._drain_ns() + LATE_NS, self._end_by_force)
            self._hang_up()

    def _drain_ns(self) -> int:
        """Return the time for running answers that the gateway reported; 0: it does not serve yet."""
        try:
            return int(float(os.read(self._lifeline, 64)) * 1e9)
        except (OSError, ValueError):
            return 0

    def _end_by_force(self) -> None:
        if self._process is not None:
            log.error("the HTTP gateway was told to stop and hangs: killing it")
            self._process.kill()

    def _hang_up(self) -> None:
        """Close the socket, which ends the child."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
