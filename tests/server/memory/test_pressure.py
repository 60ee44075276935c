"""Watching for memory pressure, with each system's interface."""

from __future__ import annotations

import base64
import ctypes
import errno
import os
import select
import socket

import pytest

from uma_core.clock import ManualClock
from uma_core.server.io.loop import Loop
from uma_core.server.memory import pressure
from uma_core.server.memory.pressure import CRITICAL, HANDLER, POLL_NS, WARN, DispatchSource, PsiPoll, PsiTrigger, watch


class Turns:
    """A loop on a manual clock that counts signals."""

    def __init__(self) -> None:
        self.clock = ManualClock(1)
        self.loop = Loop(self.clock)
        self.n = 0

    def signal(self) -> None:
        self.n += 1


@pytest.fixture
def turns():
    turns = Turns()
    yield turns
    turns.loop.close()


@pytest.fixture
def urgent(monkeypatch):
    """Replace the descriptor that `os.open` would return by one that can become urgent; return its other end too."""
    server = socket.create_server(("127.0.0.1", 0))
    far = socket.create_connection(server.getsockname())
    near, _ = server.accept()
    server.close()
    written: list[bytes] = []
    monkeypatch.setattr(pressure.os, "open", lambda path, flags: os.dup(near.fileno()))
    monkeypatch.setattr(pressure.os, "write", lambda fd, data: written.append(data) or len(data))
    yield near, far, written
    near.close()
    far.close()


def test_a_trigger_is_written_and_its_event_is_a_signal(turns, urgent):
    near, far, written = urgent
    trigger = PsiTrigger(turns.loop, turns.signal, "/proc/pressure/memory", b"some 1 2")
    assert written == [b"some 1 2\0"]
    turns.loop.turn(0)
    assert turns.n == 0
    far.send(b"!", socket.MSG_OOB)
    turns.loop.turn(1)
    assert turns.n == 1
    near.recv(1, socket.MSG_OOB)
    trigger.close()
    trigger.close()
    far.send(b"!", socket.MSG_OOB)
    turns.loop.turn(0)
    assert turns.n == 1


def test_a_source_that_goes_away_ends_the_watch(turns, urgent, monkeypatch):
    trigger = PsiTrigger(turns.loop, turns.signal, "x", b"y")
    monkeypatch.setattr(trigger, "_epoll", FakeEpoll(trigger._epoll, select.EPOLLERR))
    trigger._on_ready(1)
    assert (turns.n, trigger._fd) == (0, -1)


class FakeEpoll:
    def __init__(self, inner, mask: int) -> None:
        self.inner, self.mask = inner, mask

    def poll(self, timeout: float):
        return [(3, self.mask)]

    def fileno(self) -> int:
        return self.inner.fileno()

    def close(self) -> None:
        self.inner.close()


def test_systemd_names_the_file_and_the_threshold(turns, urgent, monkeypatch):
    opened: list[str] = []
    inner = pressure.os.open
    monkeypatch.setattr(pressure.os, "open", lambda path, flags: opened.append(path) or inner(path, flags))
    environ = {
        "MEMORY_PRESSURE_WATCH": "/sys/fs/cgroup/x/memory.pressure",
        "MEMORY_PRESSURE_WRITE": base64.b64encode(b"some 7 8").decode(),
    }
    watcher = watch(turns.loop, turns.signal, environ)
    assert isinstance(watcher, PsiTrigger)
    assert opened == ["/sys/fs/cgroup/x/memory.pressure"]
    assert urgent[2] == [b"some 7 8\0"]
    watcher.close()
    assert watch(turns.loop, turns.signal, {"MEMORY_PRESSURE_WATCH": "/dev/null"}) is None


def test_without_a_trigger_the_average_is_looked_at(turns, tmp_path, monkeypatch):
    file = tmp_path / "memory"
    text = "some avg10={:.2f} avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    file.write_text(text.format(1.5))

    def refuse(*args):
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(pressure, "PsiTrigger", refuse)
    watcher = watch(turns.loop, turns.signal, {"MEMORY_PRESSURE_WATCH": str(file)})
    assert isinstance(watcher, PsiPoll)
    for average, expected in ((1.5, 0), (25.0, 1), (25.0, 2), (0.0, 2)):
        file.write_text(text.format(average))
        turns.clock.advance(POLL_NS)
        turns.loop.turn(0)
        assert turns.n == expected
    watcher.close()
    file.write_text(text.format(99.0))
    turns.clock.advance(POLL_NS)
    turns.loop.turn(0)
    assert turns.n == 2


def test_where_there_is_nothing_nothing_is_watched(turns, tmp_path, caplog):
    caplog.set_level("INFO", "uma_core")
    assert watch(turns.loop, turns.signal, {"MEMORY_PRESSURE_WATCH": str(tmp_path / "absent")}) is None
    assert "not watched" in caplog.text


class FakeDispatch:
    """The part of libdispatch that the product uses; it records its calls."""

    def __init__(self, source: int) -> None:
        self.calls: list[tuple] = []
        self.handler = None
        self._dispatch_source_type_memorypressure = ctypes.c_char(b"m")
        for name, result in (
            ("dispatch_get_global_queue", 77),
            ("dispatch_source_create", source),
            ("dispatch_resume", None),
        ):
            setattr(self, name, self._function(name, result))
        self.dispatch_source_cancel = self._function("dispatch_source_cancel", None)
        self.dispatch_source_set_event_handler_f = self._keep

    def _function(self, name, result):
        def call(*args):
            self.calls.append((name, *[getattr(arg, "value", arg) for arg in args]))
            return result

        return call

    def _keep(self, source, handler):
        self.handler = handler


def test_dispatch_source_gets_the_right_calls(turns, monkeypatch):
    lib = FakeDispatch(source=4711)
    monkeypatch.setattr(
        pressure.ctypes, "c_char", type("c", (), {"in_dll": staticmethod(lambda lib, name: getattr(lib, name))})
    )
    source = DispatchSource(turns.loop, turns.signal, lib)
    kind = ctypes.addressof(lib._dispatch_source_type_memorypressure)
    assert lib.calls == [
        ("dispatch_get_global_queue", 0, 0),
        ("dispatch_source_create", kind, 0, WARN | CRITICAL, 77),
        ("dispatch_resume", 4711),
    ]
    assert isinstance(lib.handler, HANDLER)
    lib.handler(None)
    turns.loop.turn(0)
    assert turns.n == 1
    source.close()
    assert lib.calls[-1] == ("dispatch_source_cancel", 4711)


def test_dispatch_without_a_source_is_nothing_to_watch(turns, monkeypatch):
    lib = FakeDispatch(source=0)
    monkeypatch.setattr(
        pressure.ctypes, "c_char", type("c", (), {"in_dll": staticmethod(lambda lib, name: getattr(lib, name))})
    )
    monkeypatch.setattr(pressure.sys, "platform", "darwin")
    monkeypatch.setattr(pressure.ctypes, "CDLL", lambda name: lib)
    assert watch(turns.loop, turns.signal, {}) is None
