"""The real daemon, with levers: `python -m tests.daemon.launcher daemon --engine fake …`.

All code is the product's own; this module only changes what a test must break. Each JSON object on a line of
stdin sets levers. A line on stdout acknowledges them once they are in force.
"""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import sys
import threading
import time
from collections import deque
from typing import Any

from uma_core import cli
from uma_core.cache import disk
from uma_core.engine.api import DecodeOutcome, DecodeStatus, PrefillOutcome, PrefillStatus
from uma_core.engine.fake import open as fake_open
from uma_core.engine.refusals import refusals
from uma_core.engine.select.open import open_engine
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor import calibration, executor
from uma_core.executor.thread import ComputeThread
from uma_core.server.io import app, listener
from uma_core.server.lifecycle import daemon, gateway, host, lifecycle
from uma_core.server.memory import budget, relief
from uma_core.server.operations import intake
from uma_core.types import Peer


class Levers:
    """The faults to inject. The control thread writes them, and every thread reads them."""

    def __init__(self) -> None:
        self.step_ms = 0.0  # added to every decode call
        self.statuses: deque[str] = deque()  # statuses of the next decode calls
        self.n_full = 0  # this many decode calls find no room
        self.bad_plans = 0  # this many plans break their contract
        self.has_no_pages = False
        self.nan_rows: list[int] = []  # of the next decode call
        self.prefill_failures = 0
        self.is_hanging = False
        self.is_deaf = False  # a hang that not even an abort ends
        self.is_reading = False  # texts take for ever to read while this is set
        self.load_ms = 0.0  # added to every load
        self.end_ms = 0.0  # added to the end of the compute thread
        self.load_errors: deque[str] = deque()  # names of the error codes with which the next loads end
        self.peer: list[int] | None = None  # identity of the peers of the next connections
        self.accept_errors: deque[str] = deque()  # names of the errno values with which the next accepts end
        self.disk_ms = 0.0  # added to every write to the cache's disk
        self.available_mb: float | None = None  # memory that the machine seems to have available
        self.n_decodes = 0
        self.n_aborts = 0

    def set(self, name: str, value: Any) -> None:
        if name == "pressure":
            signal_pressure()
        elif name == "gives_up_soon":  # when the daemon ends, it waits a tenth of the time for parts that do not end
            for module, wait in (
                (daemon, "STOP_TIMEOUT_S"),
                (gateway, "LATE_NS"),
                (gateway, "STOP_S"),
                (intake, "STOP_S"),
                (lifecycle, "CUT_GRACE_NS"),
            ):
                setattr(module, wait, type(getattr(module, wait))(getattr(module, wait) / 10))
        elif name == "eog_every":  # must be set before the model is opened; 0: no answer ends by itself
            fake_open.EOG_EVERY = value
        elif name == "fsize":
            resource.setrlimit(resource.RLIMIT_FSIZE, (value, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        elif name == "nofile":
            resource.setrlimit(resource.RLIMIT_NOFILE, (value, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        elif isinstance(getattr(self, name), deque):
            getattr(self, name).extend(value)
        else:
            setattr(self, name, value)


LEVERS = Levers()


class Levered:
    """An engine between the daemon and the real engine, which applies the levers."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._aborted = threading.Event()
        self._hidden: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def decode(self, batch: Any, samplers: Any) -> DecodeOutcome:
        LEVERS.n_decodes += 1
        if LEVERS.step_ms:
            self._aborted.wait(LEVERS.step_ms / 1e3)
        if self._hang():
            return DecodeOutcome(DecodeStatus.ABORTED, [], 0, 0)
        if LEVERS.n_full > 0:
            LEVERS.n_full -= 1
            refusals.add()
            return DecodeOutcome(DecodeStatus.FULL, [], 0, 0)
        self._hide_pages()
        status = DecodeStatus[LEVERS.statuses.popleft()] if LEVERS.statuses else DecodeStatus.OK
        outcome = self._inner.decode(batch, samplers)
        if status is not DecodeStatus.OK:  # the call did part of its work before it failed
            return DecodeOutcome(status, [], outcome.call_ns, 0)
        nan, LEVERS.nan_rows = LEVERS.nan_rows, []
        return outcome._replace(tokens=[-1 if i in nan else token for i, token in enumerate(outcome.tokens)])

    def _hide_pages(self) -> None:
        """Leave the graph engine without free pages for as long as the lever is set."""
        if LEVERS.has_no_pages and not self._hidden:
            self._hidden, self._inner._pages._free[:] = self._inner._pages._free[:], []
        elif self._hidden and not LEVERS.has_no_pages:
            self._inner._pages._free[:] = sorted(self._inner._pages._free + self._hidden)
            self._hidden = []

    def _hang(self) -> bool:
        """Hang. True if an abort ended the hang."""
        while LEVERS.is_hanging:
            time.sleep(0.002)
            if self._aborted.is_set() and not LEVERS.is_deaf:
                self._aborted.clear()
                return True
        self._aborted.clear()
        return False

    def tokenize(self, *args: Any) -> Any:
        while LEVERS.is_reading:
            time.sleep(0.002)
        return self._inner.tokenize(*args)

    def prefill_run(self, seq_id: int, until_ns: int, quantum_ns: int, min_pieces: int) -> PrefillOutcome:
        if self._hang():
            return PrefillOutcome(PrefillStatus.PAUSED, 0, 0.0, 0, 0)
        if LEVERS.prefill_failures > 0:
            LEVERS.prefill_failures -= 1
            self._inner.prefill_close(seq_id)
            return PrefillOutcome(PrefillStatus.FAILED, 0, 0.0, 0, 0)
        return self._inner.prefill_run(seq_id, until_ns, quantum_ns, min_pieces)

    def abort(self) -> None:
        LEVERS.n_aborts += 1
        self._aborted.set()
        if not LEVERS.is_hanging:  # the call would return here
            self._inner.abort()


class LeveredSocket:
    """A listening socket whose accept fails on demand."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def accept(self) -> Any:
        if LEVERS.accept_errors:
            number = getattr(errno, LEVERS.accept_errors.popleft())
            raise OSError(number, os.strerror(number))
        return self._inner.accept()


def open_levered(*args: Any) -> Levered:
    time.sleep(LEVERS.load_ms / 1e3)
    if LEVERS.load_errors:
        raise UmaError(ErrorCode[LEVERS.load_errors.popleft()], "a lever was pulled")
    return Levered(open_engine(*args))


def signal_pressure() -> None:
    """Report memory pressure as a watcher does."""
    loop, on_pressure = WATCHED[-1]
    loop.call_soon(on_pressure)


WATCHED: list[Any] = []


class NoWatcher:
    def __init__(self, loop: Any, on_pressure: Any, environ: Any) -> None:
        WATCHED.append((loop, on_pressure))

    def close(self) -> None:
        WATCHED.clear()


def install() -> None:
    relief.watch = NoWatcher  # type: ignore[assignment]
    calibration.CALM_SPREAD = math.inf  # a busy machine does not change what a test sees
    peer_of, available_bytes, init = app.peer_of, budget.available_bytes, listener.BoundSocket.__init__
    host.open_engine = open_levered
    write = disk._write_all

    def write_slowly(*args: Any) -> None:
        time.sleep(LEVERS.disk_ms / 1e3)
        write(*args)

    disk._write_all = write_slowly
    stop = ComputeThread.stop

    def stop_slowly(self: ComputeThread, timeout_s: float) -> bool:
        time.sleep(LEVERS.end_ms / 1e3)
        return stop(self, timeout_s)

    ComputeThread.stop = stop_slowly  # type: ignore[method-assign]
    check_plan = executor.check_plan

    def check(*args: Any) -> list[str]:
        if LEVERS.bad_plans <= 0:
            return check_plan(*args)
        LEVERS.bad_plans -= 1
        return ["a lever was pulled"]

    executor.check_plan = check
    app.peer_of = lambda sock: peer_of(sock) if LEVERS.peer is None else Peer(*LEVERS.peer)
    budget.available_bytes = lambda: (
        available_bytes() if LEVERS.available_mb is None else int(LEVERS.available_mb * budget.MIB)
    )

    def wrap(self: Any, sock: Any, *rest: Any) -> None:
        init(self, sock, *rest)
        self.sock = LeveredSocket(self.sock)

    listener.BoundSocket.__init__ = wrap  # type: ignore[method-assign]


def control() -> None:
    for line in sys.stdin:
        for name, value in json.loads(line).items():
            LEVERS.set(name, value)
        print(json.dumps({"n_decodes": LEVERS.n_decodes, "n_aborts": LEVERS.n_aborts}), flush=True)


if __name__ == "__main__":
    for lever, setting in json.loads(os.environ.get("TEST_LEVERS", "{}")).items():
        LEVERS.set(lever, setting)
    install()
    threading.Thread(target=control, daemon=True).start()
    sys.exit(cli.main())
