"""A reader that falls behind pauses only its own sequences. A reader that stays behind is dropped. Other clients notice
nothing.
"""

from __future__ import annotations

import errno
import os
import socket

import pytest

import uma_core.metrics.catalog as m
from uma_core.session.events import HangUp, Hold

SMALL = {"tx_soft_bytes": 4096, "tx_hard_bytes": 1 << 20}
ENDLESS = 1 << 20


def holds(server) -> list[bool]:
    return [command.is_held for command in server.compute.seen if isinstance(command, Hold)]


def is_held(server) -> bool:
    return any(client.is_held for client in server.app.clients.values())


def test_a_slow_reader_is_held_and_goes_on_where_it_was(serve, texts):
    server = serve(ipc=SMALL)
    n = 6_000  # tokens: more than the socket's buffer and the soft cap hold
    with server.connect() as slow, server.connect() as quick:
        slow.send(id="slow", prompt="abcdefghijklmnopqrstuvwxyz" * 4, max_tokens=n)
        server.eventually(lambda: is_held(server))
        quick.send(id="quick", prompt="quick", max_tokens=500)
        assert texts(quick.until_final("quick"), "quick") == "quick" * 100
        assert server.on_loop(lambda: is_held(server))
        unsent = server.on_loop(lambda: max(client.n_unsent for client in server.app.clients.values()))
        assert 4096 < unsent < 1 << 16
        assert server.value(m.TX_BUFFERED) > 4096
        assert texts(slow.until_final("slow"), "slow") == ("abcdefghijklmnopqrstuvwxyz" * (n // 26 + 1))[:n]
    assert holds(server)[:2] == [True, False]
    assert server.value(m.SLOW_CLIENTS) == 0


def test_a_request_accepted_while_its_client_is_held_is_held_too(serve):
    server = serve(ipc=SMALL)
    started, release = server.text.block("late")
    with server.connect() as slow:
        slow.send(id="late", prompt="late")
        slow.send(id="slow", prompt="abcdefgh" * 16, max_tokens=ENDLESS)
        assert started.wait(20)
        server.eventually(lambda: is_held(server))
        release.set()
        server.eventually(lambda: any(key[1] == "late" and s.is_held for key, s in server.compute.sessions.items()))


def test_a_reader_without_progress_is_dropped(serve):
    server = serve(ipc={**SMALL, "write_timeout_ms": 100.0})
    with server.connect() as slow, server.connect() as quick:
        slow.send(id="slow", prompt="abcdefgh", max_tokens=ENDLESS)
        quick.send(id="quick", prompt="quick", max_tokens=50)
        assert quick.until_final("quick")[-1]["event"] == "eos"
        server.eventually(lambda: len(server.app.clients) == 1)
        assert server.value(m.SLOW_CLIENTS) == 1
        assert server.value(m.ERRORS, code="E_IO_001") == 1
        server.eventually(lambda: not server.compute.sessions)
        assert any(isinstance(command, HangUp) for command in server.compute.seen)


def test_above_the_hard_cap_a_reader_is_dropped_even_if_its_sequences_do_not_pause(serve, monkeypatch):
    server = serve(ipc={"tx_soft_bytes": 4096, "tx_hard_bytes": 8192})
    submit = server.compute.submit
    monkeypatch.setattr(server.app._compute, "submit", lambda c: None if isinstance(c, Hold) else submit(c))
    with server.connect() as slow:
        slow.send(id="slow", prompt="abcdefgh" * 16, max_tokens=ENDLESS)
        server.eventually(lambda: not server.app.clients)
    assert server.value(m.SLOW_CLIENTS) == 1
    assert server.value(m.TX_BUFFERED) == 0


def test_a_whole_answer_above_the_hard_cap_reaches_its_reader(serve):
    server = serve(ipc={"tx_soft_bytes": 1024, "tx_hard_bytes": 4096})
    with server.connect() as client:
        client.send(id="first", prompt="x")
        client.until_final("first")
        (serving,) = server.on_loop(lambda: list(server.app.clients.values()))
        serving._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.send(id="whole", prompt="\x01", max_tokens=3000, stream=False)  # six bytes of JSON for a character
        assert client.until_final("whole")[-1]["text"] == "\x01" * 3000
    assert server.value(m.SLOW_CLIENTS) == 0


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM])
def test_a_kernel_without_memory_for_a_moment_costs_nobody_a_byte(server, texts, number):
    with server.connect() as client:
        client.send(id="first", prompt="x")
        client.until_final("first")
        (serving,) = server.on_loop(lambda: list(server.app.clients.values()))
        serving._sock = Starved(serving._sock, number, n_failures=5)
        client.send(id="a", prompt="abc", max_tokens=200)
        assert texts(client.until_final("a"), "a") == ("abc" * 67)[:200]
        assert serving._sock.n_failures == 0
    assert server.value(m.SLOW_CLIENTS) == 0


class Starved:
    """A socket whose next writes fail."""

    def __init__(self, sock, number: int, n_failures: int) -> None:
        self._sock = sock
        self._number = number
        self.n_failures = n_failures

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def send(self, data):
        if self.n_failures:
            self.n_failures -= 1
            raise OSError(self._number, os.strerror(self._number))
        return self._sock.send(data)


def test_a_flood_of_bad_requests_is_not_read_faster_than_its_answers(serve):
    server = serve(ipc={"tx_soft_bytes": 4096, "tx_hard_bytes": 64 << 10})
    n = 12_000
    with server.connect() as client:
        client.sock.settimeout(0.2)
        data, sent = b"\x02\0\0\0{}" * n, 0
        try:
            while sent < len(data):
                sent += client.sock.send(data[sent:])
        except TimeoutError:
            pass  # expected: the server has stopped reading
        client.sock.settimeout(20)
        for _ in range(sent // 6 if sent < len(data) else n):
            assert client.event()["name"] == "bad_request"
        assert server.value(m.SLOW_CLIENTS) == 0
        rest = data[sent:]
        client.sock.sendall(rest[: -(-len(rest) // 6) * 6][: 6 - sent % 6] if sent % 6 else b"")
        assert client.ask(type="health", id=1)["event"] in ("reply", "error")
