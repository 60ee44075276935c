"""The gateway as a child of the daemon: there is one at most, whatever is reloaded when."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

import pytest

from uma_core.clock import ManualClock
from uma_core.config.options import HttpOptions
from uma_core.server.io.loop import Loop
from uma_core.server.lifecycle import gateway
from uma_core.server.lifecycle.gateway import LATE_NS, LONGEST_PAUSE_NS, Gateway


class Child:
    """A process that runs until it is ended."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def wait(self, timeout: float | None = None) -> int:
        self._over.wait(timeout)
        return 0

    def kill(self) -> None:
        self._over.set()

    @property
    def has_ended(self) -> bool:
        return self._over.is_set()


def test_a_reload_while_its_next_start_is_due_starts_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, children, is_broken = ManualClock(1_000), [], [True]

    def start(*args: Any, **kwargs: Any) -> Child:
        if is_broken[0]:
            raise OSError("no such program")
        children.append(Child())
        return children[-1]

    monkeypatch.setattr(gateway.subprocess, "Popen", start)
    monkeypatch.setattr(gateway, "STOP_S", 0.01)
    loop = Loop(clock)
    child = Gateway(loop, "/run/uma.sock")
    try:
        child.apply(HttpOptions(port=8080))
        assert not children
        is_broken[0] = False
        child.apply(HttpOptions(port=8081))
        assert len(children) == 1
        clock.advance(2 * LONGEST_PAUSE_NS)
        loop.turn(0)
        assert len(children) == 1
    finally:
        for each in children:
            each.kill()
        child.close()
        loop.close()


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (gateway.socket, "socketpair", OSError(errno.EMFILE, "Too many open files")),
        (gateway.subprocess, "Popen", OSError(errno.EAGAIN, "Resource temporarily unavailable")),
        (gateway.threading.Thread, "start", RuntimeError("can't start new thread")),
    ],
)
def test_it_is_started_once_the_daemon_has_room_for_it_again(
    module: Any, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, children = ManualClock(1_000), []

    def start(*args: Any, **kwargs: Any) -> Child:
        children.append(Child())
        return children[-1]

    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(gateway.subprocess, "Popen", start)
    monkeypatch.setattr(gateway, "STOP_S", 0.01)
    loop = Loop(clock)
    child = Gateway(loop, "/run/uma.sock")
    try:
        with monkeypatch.context() as short:
            short.setattr(module, name, fail)
            child.apply(HttpOptions(port=8080))
            clock.advance(2 * LONGEST_PAUSE_NS)
            loop.turn(0)  # the retry fails, too
        assert "cannot be started" in caplog.text and "Traceback" not in caplog.text
        assert child.report() == {"host": "127.0.0.1", "port": 8080, "is_running": False, "restarts": 0}
        assert all(each.has_ended for each in children)
        clock.advance(2 * LONGEST_PAUSE_NS)
        loop.turn(0)
        assert child.report() == {"host": "127.0.0.1", "port": 8080, "is_running": True, "restarts": 0}
        assert sum(not each.has_ended for each in children) == 1
    finally:
        for each in children:
            each.kill()
        child.close()
        loop.close()


@pytest.mark.parametrize(("said", "wait_s"), [(b"45", 45), (b"", 0)])
def test_one_that_hangs_is_killed_after_the_time_for_its_answers(
    said: bytes, wait_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, children = ManualClock(1_000), []

    def start(*args: Any, pass_fds: tuple[int], **kwargs: Any) -> Child:
        if not children:
            os.write(pass_fds[0], said)
        children.append(Child())
        return children[-1]

    monkeypatch.setattr(gateway.subprocess, "Popen", start)
    monkeypatch.setattr(gateway, "STOP_S", 0.01)
    loop = Loop(clock)
    child = Gateway(loop, "/run/uma.sock")
    try:
        child.apply(HttpOptions(port=8080))
        child.apply(HttpOptions(port=8081))
        clock.advance(wait_s * 1_000_000_000 + LATE_NS - 1)
        loop.turn(0)
        assert not children[0].has_ended
        child.apply(HttpOptions(port=8082))  # does not begin the wait again
        clock.advance(1)
        loop.turn(0)
        assert children[0].has_ended
        while len(children) == 1:
            loop.turn(10)
        assert child.report() == {"host": "127.0.0.1", "port": 8082, "is_running": True, "restarts": 1}
        clock.advance(2 * LONGEST_PAUSE_NS)
        loop.turn(0)
        assert not children[1].has_ended
    finally:
        for each in children:
            each.kill()
        child.close()
        loop.close()
