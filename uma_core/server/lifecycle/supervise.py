"""Keeps a supervisor informed: ready, reloading, stopping, status; asks for time; proves that the compute thread runs.

Rules: WATCHDOG=1 is sent only when the compute thread answers, which it does between two turns: if a decode call hangs,
the watchdog fires, even if the sockets still work.
"""

from __future__ import annotations

from uma_core.executor.thread import ComputeThread
from uma_core.server.io.loop import Loop
from uma_core.server.lifecycle.host import Host
from uma_core.server.lifecycle.lifecycle import DEGRADED, DRAINING, READY, STARTING, STOPPING, Lifecycle
from uma_core.server.lifecycle.notify import Notifier
from uma_core.session.events import Call

ASK_EVERY_NS = 2_000_000_000  # while more time is needed
ASK_FOR_NS = 20_000_000_000
LOAD_LIMIT_NS = 1_800_000_000_000  # a longer load counts as failed for the supervisor
BEATS_PER_WATCHDOG = 3


class Supervision:
    """Runs on the I/O thread."""

    def __init__(
        self, notifier: Notifier, loop: Loop, compute: ComputeThread, host: Host, lifecycle: Lifecycle
    ) -> None:
        self._notifier = notifier
        self._loop = loop
        self._compute = compute
        self._host = host
        self._lifecycle = lifecycle
        self._is_told_ready = False
        self._is_asked = False
        self._starting_ns = 0

    def start(self) -> None:
        if not self._notifier.is_heard:
            return
        self._starting_ns = self._loop.clock.now_ns()
        self._ask_for_time()
        if self._notifier.watchdog_ns:
            self._ask_compute()

    # states

    def on_state(self, state: str) -> None:
        """Report a change of the daemon's state."""
        if state == STARTING:
            self._starting_ns = self._loop.clock.now_ns()
        if state == STOPPING:
            self._notifier.send(STOPPING=1, STATUS="stopping")
        elif state != STARTING and not self._is_told_ready:
            self._is_told_ready = True
            self._notifier.send(READY=1, STATUS=self._status())
        else:
            self._notifier.send(STATUS=self._status())

    def on_doing(self) -> None:
        """Report the next step of a load."""
        self._notifier.extend(ASK_FOR_NS)
        self._notifier.send(STATUS=self._status())

    def on_reload(self) -> None:
        self._notifier.reloading("reloading")

    def on_reloaded(self) -> None:
        """Report the end of a reload, even a failed one: the old configuration is in use again."""
        self._notifier.send(READY=1, STATUS=self._status())

    def _status(self) -> str:
        state = self._lifecycle.state
        if state == STARTING:
            return f"{self._host.doing}: {self._host.progress:.0%}"
        if state == DRAINING:
            return f"draining: {self._lifecycle.n_remaining()} requests still run"
        if state == DEGRADED:
            return f"degraded: {self._lifecycle.reason()}"
        engine = self._host.engine
        return f"serving {engine.info.model_name}" if engine is not None and state == READY else state

    # time

    def _ask_for_time(self) -> None:
        """Ask for more time: a model of 40 GB on a slow disk, or a drain of minutes, is not a failure."""
        self._loop.call_later(ASK_EVERY_NS, self._ask_for_time)
        state = self._lifecycle.state
        is_loading = state == STARTING and self._loop.clock.now_ns() - self._starting_ns < LOAD_LIMIT_NS
        if is_loading or (state == DRAINING and self._lifecycle.is_leaving):
            self._notifier.extend(ASK_FOR_NS)
            self._notifier.send(STATUS=self._status())

    # life

    def _ask_compute(self) -> None:
        self._loop.call_later(self._notifier.watchdog_ns // BEATS_PER_WATCHDOG, self._ask_compute)
        if not self._is_asked:
            self._is_asked = True
            self._compute.submit(Call(lambda: None, lambda result, failure: self._loop.call_soon(self._on_answer)))

    def _on_answer(self) -> None:
        self._is_asked = False
        self._notifier.send(WATCHDOG=1)
