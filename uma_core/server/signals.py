"""Signals, as an operator expects them. Handlers only queue; the loop acts.

TERM drains with the configured deadline, a second one stops; INT stops fast; QUIT stops at once and dumps the
stacks of all threads, and so do fatal signals; HUP reloads.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from uma_core.server.lifecycle import EXIT, Lifecycle
from uma_core.server.loop import READ, Loop

QUIT_STATUS = 128 + signal.SIGQUIT


def install(loop: Loop, lifecycle: Lifecycle, reload: Callable[[], None]) -> None:
    """On the main thread."""
    _wake_on_signals(loop)

    def on_term() -> None:
        if lifecycle.is_leaving:
            lifecycle.stop()
        else:
            lifecycle.drain(None, EXIT)

    actions = {signal.SIGTERM: on_term, signal.SIGINT: lifecycle.stop, signal.SIGHUP: reload}

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon(actions[signal.Signals(number)])

    for number in actions:
        signal.signal(number, on_signal)
    _install_quit()


def _wake_on_signals(loop: Loop) -> None:
    """Python runs handlers between two instructions: one that comes just before the loop sleeps would wait for it to wake."""
    here, there = socket.socketpair()
    for end in (here, there):
        end.setblocking(False)
    signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    there.detach()  # the interpreter writes to it until the end

    def swallow(events: int) -> None:
        here.recv(64)

    loop.watch(here, READ, swallow)


def _install_quit() -> None:
    """Only Python writes the stacks of all threads safely: while others run, theirs change under a reader. C code writes the main thread's before
    that, in case it runs no Python any more; after a fatal signal there is nothing to lose, and C code writes them all."""
    signal.signal(signal.SIGQUIT, _quit)
    with _where_stderr_is_a_file():
        faulthandler.register(signal.SIGQUIT, file=sys.stderr, all_threads=False, chain=True)
        faulthandler.enable(file=sys.stderr, all_threads=True)


def _quit(number: int, frame: FrameType | None) -> None:
    with _where_stderr_is_a_file():
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(QUIT_STATUS)


def _where_stderr_is_a_file() -> suppress:
    """Elsewhere there is nothing that C code can write to."""
    return suppress(OSError, ValueError, RuntimeError)
