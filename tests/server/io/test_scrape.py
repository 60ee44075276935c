"""`GET /metrics`, as all kinds of HTTP clients send it."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from uma_core.errors import ErrorCode, UmaError
from uma_core.server.io.loop import Loop
from uma_core.server.io.scrape import HEAD_BYTES, MOST_VISITORS, Scraper

WAIT_S = 20


class Host:
    """A scraper whose loop runs in a thread."""

    def __init__(self) -> None:
        self.text = "uma_answer 42\n"
        self.loop = Loop()
        self.scraper = Scraper(self.loop, ("127.0.0.1", 0), self._render)
        self.address = self.scraper.address
        self._thread = threading.Thread(target=self.loop.run, daemon=True)
        self._thread.start()

    def _render(self) -> str:
        if not self.text:
            raise RuntimeError("a bug")
        return self.text

    def close(self) -> None:
        self.loop.call_soon(self.scraper.close)
        self.loop.call_soon(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, WAIT_S)

    def ask(self, method: str = "GET", path: str = "/metrics") -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=WAIT_S)
        connection.request(method, path)
        response = connection.getresponse()
        return response, response.read()

    def raw(self, data: bytes) -> bytes:
        with self.connect() as sock:
            sock.sendall(data)
            return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def test_the_figures(host):
    response, body = host.ask()
    assert (response.status, body) == (200, b"uma_answer 42\n")
    assert response.getheader("Content-Type").startswith("text/plain; version=0.0.4")
    assert host.ask(path="/metrics?name=x")[1] == host.ask(path="/")[1] == body


def test_the_head_alone(host):
    response, body = host.ask("HEAD")
    assert (response.status, response.getheader("Content-Length"), body) == (200, "14", b"")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"GET /metrics SIP/2.0\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES, b"431"),
        (b"GET /metrics HTTP/1.0\n\n", b"200"),
    ],
)
def test_every_request_gets_an_answer(host, data, status):
    assert host.raw(data).split()[1] == status
    assert host.ask()[0].status == 200


def test_a_request_in_pieces(host):
    with host.connect() as sock:
        for byte in b"GET /metrics HTTP/1.1\r\n\r\n":
            sock.sendall(bytes([byte]))
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_long_answer_to_a_reader_that_takes_its_time(host):
    host.text = "#" * 30_000_000
    with host.connect() as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        other = host.ask("HEAD")[0]
        data = b"".join(iter(lambda: sock.recv(1 << 20), b""))
    assert (other.status, data.count(b"#"), data[-1:]) == (200, 30_000_000, b"#")


def test_a_bug_in_the_figures_is_told(host):
    host.text = ""
    assert host.ask()[0].status == 500


def test_those_who_say_nothing_keep_nobody_out(host):
    silent = [host.connect() for _ in range(2 * MOST_VISITORS)]
    assert host.ask()[0].status == 200
    with pytest.raises(ConnectionResetError):  # the first connections had to make room
        if not silent[0].recv(1):
            raise ConnectionResetError
    for sock in silent:
        sock.close()


def test_an_address_that_is_taken_is_a_coded_error(host):
    with pytest.raises(UmaError) as caught:
        Scraper(Loop(), host.address, str)
    assert caught.value.error is ErrorCode.CONFIG_INVALID and "metrics.listen" in caught.value.message
