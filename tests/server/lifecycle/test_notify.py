"""Messages to a supervisor, as sd_notify(3) describes them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.folders import short_folder
from uma_core.server.lifecycle.notify import Notifier

PID = 7


@pytest.fixture
def supervisor() -> Iterator[socket.socket]:
    with short_folder() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(Path(folder) / "s"))
        heard.setblocking(False)
        yield heard


def test_assignments_are_one_message_of_one_line_each(supervisor: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": supervisor.getsockname()}, PID)
    assert notifier.is_heard
    notifier.send(READY=1, STATUS="two\nlines \udcff")
    assert supervisor.recv(1000) == b"READY=1\nSTATUS=two lines ?"
    notifier.extend(2_000_000)
    assert supervisor.recv(1000) == b"EXTEND_TIMEOUT_USEC=2000"
    notifier.reloading("again")
    first, time, last = supervisor.recv(1000).split(b"\n")
    assert (first, last) == (b"RELOADING=1", b"STATUS=again")
    assert time.startswith(b"MONOTONIC_USEC=") and int(time.partition(b"=")[2]) > 0
    notifier.close()
    notifier.send(READY=1)
    with pytest.raises(BlockingIOError):
        supervisor.recv(1000)


def test_child_processes_do_not_inherit_the_supervisor() -> None:
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "3", "WATCHDOG_PID": str(PID), "HOME": "/"}
    Notifier(environ, PID).close()
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/at/all", "/" + "x" * 200])
def test_a_supervisor_that_is_not_there_harms_nobody(address: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address} if address else {}, PID)
    notifier.send(READY=1)
    assert notifier.is_heard == address.startswith("/")
    notifier.close()


@pytest.mark.parametrize(
    ("environ", "ns"),
    [
        ({}, 0),
        ({"WATCHDOG_USEC": "5"}, 5000),
        ({"WATCHDOG_USEC": "5", "WATCHDOG_PID": "7"}, 5000),
        ({"WATCHDOG_USEC": "5", "WATCHDOG_PID": "8"}, 0),
        ({"WATCHDOG_USEC": "-5"}, 0),
        ({"WATCHDOG_USEC": "soon"}, 0),
    ],
)
def test_a_sign_of_life_is_sent_only_if_this_process_is_asked_for_it(environ: dict[str, str], ns: int) -> None:
    assert Notifier({**environ, "NOTIFY_SOCKET": "@x"}, PID).watchdog_ns == ns
    assert Notifier(dict(environ), PID).watchdog_ns == 0, "nobody would hear it"
