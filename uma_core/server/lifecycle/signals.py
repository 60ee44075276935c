"""Signals, as an operator expects them. Handlers only queue; the loop acts.

TERM and INT drain with the configured deadline, a second one stops; QUIT stops at once and dumps the stacks of all
threads, and so do fatal signals; HUP reloads. Signals without a meaning here are logged and otherwise ignored: by
default they would end the process without a drain.
"""

from __future__ import annotations

import faulthandler
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from uma_core.server.io.loop import READ, Loop
from uma_core.server.lifecycle.lifecycle import EXIT, Lifecycle

log = logging.getLogger(__name__)

QUIT_STATUS = 128 + signal.SIGQUIT
# signal that begins a drain -> what then ends the daemon at once
LEAVING = {"SIGTERM": "another SIGTERM", "SIGINT": "another Ctrl-C"}
# the CPU limit is near, or the power fails: drain; the kernel repeats the former every second
LAST_CALLS = ("SIGXCPU", "SIGPWR")
UNUSED = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGSTKFLT", "SIGEMT")
TRAPS = ("SIGTRAP", "SIGSYS")  # fatal signals that faulthandler does not handle

Action = Callable[[], None]


def install(loop: Loop, lifecycle: Lifecycle, reload: Action) -> None:
    """Call on the main thread, before there is a socket that a signal could leave behind."""
    _wake_on_signals(loop)
    actions = _actions(lifecycle, reload)

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon(actions[number])

    for number in actions:
        signal.signal(number, on_signal)
    for number in _real_time():
        signal.signal(number, signal.SIG_IGN)
    _install_quit()


def _actions(lifecycle: Lifecycle, reload: Action) -> dict[int, Action]:
    """Return what the loop does for each signal."""

    def leave(name: str) -> None:
        if lifecycle.is_leaving:
            lifecycle.stop()
            return
        lifecycle.drain(None, EXIT)
        progress = lifecycle.progress()
        n, seconds = progress["remaining"], progress["deadline_ms"] / 1e3
        log.warning(
            "%s: running requests (%d) have up to %.0f s to finish, then the daemon ends; %s ends it at once",
            name,
            n,
            seconds,
            LEAVING[name],
        )

    def last_call(name: str) -> None:
        log.error("%s: the daemon stops", name)
        if not lifecycle.is_leaving:
            lifecycle.drain(None, EXIT)

    def ignore(name: str) -> None:
        log.info("%s has no meaning here", name)

    actions: dict[int, Action] = {signal.SIGHUP: reload}
    for names, function in ((tuple(LEAVING), leave), (LAST_CALLS, last_call), (UNUSED, ignore)):
        for name in names:
            if hasattr(signal, name):  # systems differ
                actions[getattr(signal, name)] = functools.partial(function, name)
    return actions


def _real_time() -> range:
    return range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else range(0)


def _wake_on_signals(loop: Loop) -> None:
    """Make signals wake the loop: Python runs handlers between two instructions, so one that comes just before the loop
    sleeps would wait until something else wakes it.
    """
    here, there = socket.socketpair()
    for end in (here, there):
        end.setblocking(False)
    signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    there.detach()  # the interpreter writes to it until the process ends

    def swallow(events: int) -> None:
        here.recv(64)

    loop.watch(here, READ, swallow)


def _install_quit() -> None:
    """Dump the stacks of all threads from Python, because C code cannot read them safely while other threads run. C
    code dumps the main thread's first, in case it no longer runs Python. After a fatal signal there is nothing to lose,
    and C code dumps them all.
    """
    signal.signal(signal.SIGQUIT, _quit)
    with _where_stderr_is_a_file():
        faulthandler.register(signal.SIGQUIT, file=sys.stderr, all_threads=False, chain=True)
        faulthandler.enable(file=sys.stderr, all_threads=True)
        for name in TRAPS:
            faulthandler.register(getattr(signal, name), file=sys.stderr, all_threads=True, chain=True)


def _quit(number: int, frame: FrameType | None) -> None:
    with _where_stderr_is_a_file():
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(QUIT_STATUS)


def _where_stderr_is_a_file() -> suppress:
    """Do nothing if stderr is not a file: C code could not write to it."""
    return suppress(OSError, ValueError, RuntimeError)
