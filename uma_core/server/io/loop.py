"""A thin event loop: sockets, timers, and a wake-up that any thread may use.

Rules: nothing here knows protocols or sessions. The loop sleeps without a time limit when there is nothing to do.
`before_wait` hooks run once per turn, before it sleeps, and write what the turn produced in one go.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import logging
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from uma_core.clock import Clock, MonotonicClock
from uma_core.waking import WAKING

log = logging.getLogger(__name__)

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE
SWEEP_TIMERS_AT = 256  # live and cancelled timers together


# write(2) with the GIL held: it never blocks here. os.eventfd_write would hand the GIL to the loop's thread, which
# would then keep the calling thread (the compute thread) from its next decode call for up to the switch interval.
_write = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t


class Timer:
    """A call that is due at a given time. `cancel` is idempotent."""

    __slots__ = ("due_ns", "function")

    def __init__(self, due_ns: int, function: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        self.function = None


class Wakeup:
    """Makes a sleeping loop return: an eventfd if the system has it, else a socket pair.

    A flag saves the system call while a wake-up is already pending. `clear` resets it after the read and before the
    loop looks at its queues, so the loop finds there the call of a thread that still saw the flag set.
    """

    def __init__(self) -> None:
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        if hasattr(os, "eventfd"):
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._sockets = socket.socketpair()
            for end in self._sockets:
                end.setblocking(False)
            self.fd = self._sockets[0].fileno()
        self._is_set = False

    def set(self) -> None:
        fd = self.far_fd()
        if fd >= 0:  # otherwise leave the flag: `clear` may just have reset it, and it would be set without a wake-up
            self._is_set = True
            _write(fd, WAKING, len(WAKING))

    def far_fd(self) -> int:
        """Return a descriptor where writing 8 bytes does what `set` does; -1: no need, it is set or closed."""
        if self._is_set:
            return -1
        return self.fd if self._sockets is None else self._sockets[1].fileno()

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd) if self._sockets is None else self._sockets[0].recv(64)
        self._is_set = False

    def close(self) -> None:
        self._is_set = True
        if self._sockets is None:
            fd, self.fd = self.fd, -1
            os.close(fd)
        else:
            for end in self._sockets:
                end.close()


class Loop:
    """See the module docstring. For the loop's thread, except where a method says "any thread"."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or MonotonicClock()
        self.before_wait: list[Callable[[], None]] = []
        self.n_turns = 0
        self._selector = selectors.DefaultSelector()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[int, int, Timer]] = []
        self._sweep_at = SWEEP_TIMERS_AT
        self._order = itertools.count()
        self._calls: deque[Callable[[], None]] = deque()
        self._wakeup = Wakeup()
        self._is_running = False
        self.watch(self._wakeup.fd, READ, lambda events: self._wakeup.clear())

    # what to wait for

    def watch(self, fileobj: Any, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback(ready events)` whenever some of `events` are ready; 0 stops that (needed before closing)."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if not events:
            if self._callbacks.pop(fd, None) is not None:
                self._selector.unregister(fd)
            return
        if fd in self._callbacks:
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)
        self._callbacks[fd] = callback

    def call_later(self, delay_ns: int, function: Callable[[], None]) -> Timer:
        if len(self._timers) >= self._sweep_at:
            self._sweep_timers()
        timer = Timer(self.clock.now_ns() + delay_ns, function)
        heapq.heappush(self._timers, (timer.due_ns, next(self._order), timer))
        return timer

    def _sweep_timers(self) -> None:
        """Drop cancelled timers; doubling the threshold keeps the cost per timer constant."""
        self._timers = [entry for entry in self._timers if entry[2].function is not None]
        heapq.heapify(self._timers)
        self._sweep_at = max(SWEEP_TIMERS_AT, 2 * len(self._timers))

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call it on the loop's thread. For any thread."""
        self._calls.append(function)
        self._wakeup.set()

    def wake(self) -> None:
        """Make the loop turn once. For any thread, and for signal handlers."""
        self._wakeup.set()

    def wake_fd(self) -> int:
        """Return a descriptor where 8 bytes do what `wake` does, without the GIL; -1: no need. For any thread."""
        return self._wakeup.far_fd()

    # turning

    def run(self) -> None:
        """Turn until `stop`."""
        self._is_running = True
        while self._is_running:
            self.turn()

    def stop(self) -> None:
        """Return from `run` after this turn. For any thread."""
        self._is_running = False
        self._wakeup.set()

    def turn(self, max_wait_s: float | None = None) -> None:
        """Do what is due, then wait for events (at most `max_wait_s`) and handle them."""
        self.n_turns += 1
        self.run_calls()
        for hook in self.before_wait:
            self._guard(hook)
        for key, events in self._selector.select(self._wait_s(max_wait_s)):
            # An earlier callback of this turn may have closed it, and a new descriptor may have its number.
            callback = self._callbacks.get(key.fd)
            if callback is not None and callback is key.data:
                self._guard(callback, events)
        self._run_timers()

    def run_calls(self) -> None:
        """Run the calls queued by `call_soon` so far. Calls that these add wait for the next turn: a client with
        thousands of requests continues by such a call, and others get their turn before it.
        """
        for _ in range(len(self._calls)):
            self._guard(self._calls.popleft())

    def _wait_s(self, max_wait_s: float | None) -> float | None:
        while self._timers and self._timers[0][2].function is None:
            heapq.heappop(self._timers)
        if self._calls:
            return 0
        if not self._timers:
            return max_wait_s
        wait_s = max(0, self._timers[0][0] - self.clock.now_ns()) / 1e9
        return wait_s if max_wait_s is None else min(wait_s, max_wait_s)

    def _run_timers(self) -> None:
        now_ns = self.clock.now_ns()
        while self._timers and self._timers[0][0] <= now_ns:
            timer = heapq.heappop(self._timers)[2]
            if timer.function is not None:
                function, timer.function = timer.function, None
                self._guard(function)

    @staticmethod
    def _guard(function: Callable[..., Any], *args: Any) -> None:
        try:
            function(*args)
        except Exception:  # a bug in one callback must not end the thread that serves everybody
            log.exception("callback failed")

    def close(self) -> None:
        self._selector.close()
        self._wakeup.close()
