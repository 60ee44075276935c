"""`GET /metrics` over HTTP for Prometheus, on a loopback address only, and off unless `metrics.listen` names one.

A TCP port does not tell who connects, so every user of the machine can read this: it has only figures, no texts. Runs
on the I/O loop, answers one request per connection, and keeps the latest `MOST_VISITORS` connections at most, each for
`VISIT_NS`.

Source: RFC 9112 (HTTP/1.1 messages), Prometheus' text format 0.0.4.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from uma_core.errors import ErrorCode, UmaError
from uma_core.server.io.loop import READ, WRITE, Loop

log = logging.getLogger(__name__)

MOST_VISITORS = 16
VISIT_NS = 5_000_000_000
HEAD_BYTES = 8192  # of a request
READ_BYTES = 4096
BACK_OFF_NS = 1_000_000_000  # after a failed accept, because the listening socket stays readable
PATHS = (b"/metrics", b"/")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Scraper:
    """Owns the listening socket. Raises: CONFIG_INVALID if it cannot be bound."""

    def __init__(self, loop: Loop, address: tuple[str, int], text: Callable[[], str]) -> None:
        self._loop = loop
        self._text = text
        self._visits: dict[_Visit, None] = {}
        self._sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind(address)
            self._sock.listen(MOST_VISITORS)
        except OSError as error:
            self._sock.close()
            raise UmaError(
                ErrorCode.CONFIG_INVALID, f"metrics.listen: cannot listen on {_shown(address)}: {error.strerror}"
            ) from error
        self._sock.setblocking(False)
        log.info("metrics at http://%s/metrics", _shown(self.address))
        self._resume()

    @property
    def address(self) -> tuple[str, int]:
        """The address, with the port that the system chose if 0 was given."""
        host, port = self._sock.getsockname()[:2]
        return host, port

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.watch(self._sock, READ, self._accept)

    def _accept(self, events: int) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("a scrape could not be accepted: %s", error.strerror)
            self._loop.watch(self._sock, 0, self._accept)
            self._loop.call_later(BACK_OFF_NS, self._resume)
            return
        sock.setblocking(False)
        if len(self._visits) >= MOST_VISITORS:
            next(iter(self._visits)).end()  # a silent client must not keep others out
        self._visits[_Visit(self._loop, sock, self._text, lambda visit: self._visits.pop(visit, None))] = None

    def close(self) -> None:
        """Idempotent."""
        if self._sock.fileno() >= 0:
            self._loop.watch(self._sock, 0, self._accept)
            self._sock.close()
        for visit in list(self._visits):
            visit.end()


class _Visit:
    """One connection: it reads a request's head and writes an answer."""

    def __init__(
        self, loop: Loop, sock: socket.socket, text: Callable[[], str], on_end: Callable[[_Visit], object]
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._text = text
        self._on_end = on_end
        self._head = b""
        self._left = memoryview(b"")  # unsent bytes of the answer
        self._timer = loop.call_later(VISIT_NS, self.end)
        loop.watch(sock, READ, self._on_ready)

    def _on_ready(self, events: int) -> None:
        try:
            if events & READ and not self._left:
                self._read()
            elif self._left:
                self._write()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.end()

    def _read(self) -> None:
        data = self._sock.recv(READ_BYTES)
        self._head += data
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._left = memoryview(self._answer(self._head.split(b"\n", 1)[0].split()))
        elif len(self._head) > HEAD_BYTES:
            self._left = memoryview(_message("431 Request Header Fields Too Large"))
        elif not data:
            self.end()
            return
        if self._left:
            self._loop.watch(self._sock, WRITE, self._on_ready)
            self._write()

    def _answer(self, words: list[bytes]) -> bytes:
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _message("400 Bad Request")
        method, target, _ = words
        if method not in (b"GET", b"HEAD"):
            return _message("405 Method Not Allowed", "Allow: GET, HEAD\r\n")
        if target.split(b"?", 1)[0] not in PATHS:
            return _message("404 Not Found")
        try:
            body = self._text().encode()
        except Exception:  # a bug there must not leave the scraper without an answer
            log.exception("metrics")
            return _message("500 Internal Server Error")
        return _message("200 OK", f"Content-Type: {CONTENT_TYPE}\r\n", body, method == b"GET")

    def _write(self) -> None:
        self._left = self._left[self._sock.send(self._left) :]
        if not self._left:
            self.end()

    def end(self) -> None:
        """Close. Idempotent."""
        if self._sock.fileno() >= 0:
            self._timer.cancel()
            self._loop.watch(self._sock, 0, self._on_ready)
            self._sock.close()
            self._on_end(self)


def _message(status: str, headers: str = "", body: bytes = b"", has_body: bool = True) -> bytes:
    head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    return head + body if has_body else head


def _shown(address: tuple[str, int]) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
