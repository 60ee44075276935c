"""The gateway as a child of the daemon: at most one runs, whenever the configuration is reloaded."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
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


class Rig:
    """A gateway on a manual clock. `children`: the processes that it has started."""

    def __init__(self) -> None:
        self.clock, self.children = ManualClock(1_000), list[Child]()
        self.loop = Loop(self.clock)
        self.child = Gateway(self.loop, "/run/uma.sock")

    def start(self, *args: Any, **kwargs: Any) -> Child:
        """Stands in for `subprocess.Popen`."""
        self.children.append(Child())
        return self.children[-1]

    def wait(self, wait_ns: int) -> None:
        self.clock.advance(wait_ns)
        self.loop.turn(0)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig()
    monkeypatch.setattr(gateway.subprocess, "Popen", made.start)
    monkeypatch.setattr(gateway, "STOP_S", 0.01)
    yield made
    for each in made.children:
        each.kill()
    made.child.close()
    made.loop.close()


def test_a_reload_while_its_next_start_is_due_starts_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("no such program")

    with monkeypatch.context() as broken:
        broken.setattr(gateway.subprocess, "Popen", fail)
        rig.child.apply(HttpOptions(port=8080))
    assert not rig.children
    rig.child.apply(HttpOptions(port=8081))
    assert len(rig.children) == 1
    rig.wait(2 * LONGEST_PAUSE_NS)
    assert len(rig.children) == 1


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (gateway.socket, "socketpair", OSError(errno.EMFILE, "Too many open files")),
        (gateway.subprocess, "Popen", OSError(errno.EAGAIN, "Resource temporarily unavailable")),
        (gateway.threading.Thread, "start", RuntimeError("can't start new thread")),
    ],
)
def test_it_is_started_once_the_daemon_has_room_for_it_again(
    rig: Rig,
    module: Any,
    name: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    child = rig.child
    with monkeypatch.context() as short:
        short.setattr(module, name, fail)
        child.apply(HttpOptions(port=8080))
        rig.wait(2 * LONGEST_PAUSE_NS)  # the retry fails, too
    assert "cannot be started" in caplog.text and "Traceback" not in caplog.text
    assert child.report() == {"host": "127.0.0.1", "port": 8080, "is_running": False, "restarts": 0}
    assert all(each.has_ended for each in rig.children)
    rig.wait(2 * LONGEST_PAUSE_NS)
    assert child.report() == {"host": "127.0.0.1", "port": 8080, "is_running": True, "restarts": 0}
    assert sum(not each.has_ended for each in rig.children) == 1


@pytest.mark.parametrize(("said", "wait_s"), [(b"45", 45), (b"", 0)])
def test_one_that_hangs_is_killed_after_the_time_for_its_answers(
    rig: Rig, said: bytes, wait_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, children = rig.child, rig.children

    def start(*args: Any, pass_fds: tuple[int], **kwargs: Any) -> Child:
        if not children:
            os.write(pass_fds[0], said)
        return rig.start()

    monkeypatch.setattr(gateway.subprocess, "Popen", start)
    child.apply(HttpOptions(port=8080))
    child.apply(HttpOptions(port=8081))
    rig.wait(wait_s * 1_000_000_000 + LATE_NS - 1)
    assert not children[0].has_ended
    child.apply(HttpOptions(port=8082))  # this does not restart the wait
    rig.wait(1)
    assert children[0].has_ended
    while len(children) == 1:
        rig.loop.turn(0.05)
    assert child.report() == {"host": "127.0.0.1", "port": 8082, "is_running": True, "restarts": 1}
    rig.wait(2 * LONGEST_PAUSE_NS)
    assert not children[1].has_ended
