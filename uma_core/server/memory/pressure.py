"""Memory pressure, as the system reports it: PSI on Linux, a dispatch source on macOS.

Rules: a watcher calls `on_pressure` on the loop's thread and does nothing else; if the system offers no such report,
nothing is watched and the log says so. `Relief` reacts to it: cached KV first, then idle sequences, never streams.
"""

from __future__ import annotations

import base64
import ctypes
import logging
import os
import select
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from uma_core.server.io.loop import READ, Loop, Timer

log = logging.getLogger(__name__)

PSI_PATH = "/proc/pressure/memory"
TRIGGER = b"some 200000 2000000"  # a task waited for memory for 200 ms of 2 s; this window needs no privilege
POLL_NS = 5_000_000_000  # if no trigger is allowed
POLL_AVG10 = 10.0  # percent: the same share of time as the trigger

Signal = Callable[[], None]


class Watcher(Protocol):
    def close(self) -> None: ...


def watch(loop: Loop, on_pressure: Signal, environ: Mapping[str, str]) -> Watcher | None:
    """Watch the source that the system offers; None: it offers none."""
    try:
        if sys.platform == "darwin":
            return DispatchSource(loop, on_pressure, ctypes.CDLL(None))
        if environ.get("MEMORY_PRESSURE_WATCH") == "/dev/null":  # how systemd turns the watching off
            return None
        path = environ.get("MEMORY_PRESSURE_WATCH") or PSI_PATH
        trigger = base64.b64decode(environ.get("MEMORY_PRESSURE_WRITE", "")) or TRIGGER
        return _watch_psi(loop, on_pressure, path, trigger)
    except (OSError, AttributeError, ValueError) as error:
        log.info("memory pressure is not watched: %s", error)
        return None


def _watch_psi(loop: Loop, on_pressure: Signal, path: str, trigger: bytes) -> Watcher:
    try:
        return PsiTrigger(loop, on_pressure, path, trigger)
    except PermissionError as error:
        log.info("cannot set a trigger on %s (%s): reading it every %d s", path, error, POLL_NS // 10**9)
        return PsiPoll(loop, on_pressure, Path(path))


class PsiTrigger:
    """Source: Documentation/accounting/psi.rst: write a threshold, then poll for POLLPRI."""

    def __init__(self, loop: Loop, on_pressure: Signal, path: str, trigger: bytes) -> None:
        self._loop = loop
        self._on_pressure = on_pressure
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll = select.epoll()
        try:
            os.write(self._fd, trigger.rstrip(b"\0") + b"\0")
            self._epoll.register(self._fd, select.EPOLLPRI)
        except OSError:
            self.close()
            raise
        # the loop waits only for readable and writable: an epoll descriptor is readable when something in it is ready
        loop.watch(self._epoll, READ, self._on_ready)

    def _on_ready(self, events: int) -> None:
        happened = [mask for _, mask in self._epoll.poll(0)]
        if any(mask & select.EPOLLERR for mask in happened):
            log.info("memory pressure is no longer watched: its source is gone")
            self.close()
        elif any(mask & select.EPOLLPRI for mask in happened):
            self._on_pressure()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.watch(self._epoll, 0, self._on_ready)
            self._epoll.close()
            os.close(self._fd)
            self._fd = -1


class PsiPoll:
    """Reads the ten-second average every POLL_NS."""

    def __init__(self, loop: Loop, on_pressure: Signal, path: Path) -> None:
        self._loop = loop
        self._on_pressure = on_pressure
        self._path = path
        self._timer: Timer | None = None
        self.average()  # raises OSError here rather than in the timer
        self._schedule()

    def average(self) -> float:
        """Return the percentage of the last ten seconds in which some task waited for memory."""
        words = self._path.read_text().split()
        return float(next(word[6:] for word in words if word.startswith("avg10=")))

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(POLL_NS, self._look)

    def _look(self) -> None:
        self._schedule()
        if self.average() >= POLL_AVG10:
            self._on_pressure()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


WARN, CRITICAL = 0x02, 0x04  # DISPATCH_MEMORYPRESSURE_*
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DispatchSource:
    """Source: dispatch_source_create(3), DISPATCH_SOURCE_TYPE_MEMORYPRESSURE.

    The handler runs on one of dispatch's threads.
    """

    def __init__(self, loop: Loop, on_pressure: Signal, lib: Any) -> None:
        self._lib = lib
        for name in ("dispatch_source_create", "dispatch_get_global_queue"):
            getattr(lib, name).restype = ctypes.c_void_p
        kind = ctypes.addressof(ctypes.c_char.in_dll(lib, "_dispatch_source_type_memorypressure"))
        queue = ctypes.c_void_p(lib.dispatch_get_global_queue(ctypes.c_long(0), ctypes.c_ulong(0)))
        source = lib.dispatch_source_create(
            ctypes.c_void_p(kind), ctypes.c_ulong(0), ctypes.c_ulong(WARN | CRITICAL), queue
        )
        if not source:
            raise OSError("dispatch offers no memory-pressure source")
        self._source = ctypes.c_void_p(source)
        # C calls the handler for as long as the source lives, so keep a reference
        self._handler = HANDLER(lambda context: loop.call_soon(on_pressure))
        lib.dispatch_source_set_event_handler_f(self._source, self._handler)
        lib.dispatch_resume(self._source)

    def close(self) -> None:
        self._lib.dispatch_source_cancel(self._source)
