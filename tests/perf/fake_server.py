"""A server for the client's tests. It speaks frames or SSE on one thread; a script decides its tokens, without a
model.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Script = Callable[[dict[str, Any]], list[bytes]]  # request -> what to send, part by part


def frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack("<I", len(body)) + body


def uma_script(request: dict[str, Any]) -> list[bytes]:
    n = request["max_tokens"]
    parts = [frame({"id": request["id"], "event": "token", "text": "x", "token_id": i}) for i in range(n)]
    return [*parts, frame({"id": request["id"], "event": "eos", "reason": "length", "usage": {"completion_tokens": n}})]


def sse_script(request: dict[str, Any]) -> list[bytes]:
    n = request["n_predict"]
    events = [{"content": "x", "stop": False} for _ in range(n)]
    events.append({"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": n})
    chunks = [b"data: " + json.dumps(e).encode() + b"\n\n" for e in events]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks), b"0\r\n\r\n"]


class FakeServer:
    """Answers each connection on a separate thread, and remembers the requests in the order of arrival."""

    def __init__(self, listener: socket.socket, script: Script, is_http: bool, lines: bytes = b"") -> None:
        self._lines = lines  # not empty: the answer to a line of text
        self.requests: list[dict[str, Any]] = []
        self.n_connections = 0
        self._listener, self._script, self._is_http = listener, script, is_http
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in [self._accepting, *self._threads]:
            thread.join(5.0)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.n_connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            if self._lines:
                sock.makefile("rb").readline()
                sock.sendall(self._lines)
                return
            with suppress(OSError):  # the client left
                self._answer(sock)

    def _answer(self, sock: socket.socket) -> None:
        for request in self._http(sock) if self._is_http else self._frames(sock):
            self.requests.append(request)
            for part in self._script(request):
                if not part:  # hang up
                    return
                sock.sendall(part)

    @staticmethod
    def _frames(sock: socket.socket) -> Iterator[dict[str, Any]]:
        stream = sock.makefile("rb")
        while head := stream.read(4):
            yield json.loads(stream.read(struct.unpack("<I", head)[0]))

    @staticmethod
    def _http(sock: socket.socket) -> Iterator[dict[str, Any]]:
        stream = sock.makefile("rb")
        while stream.readline():
            size = 0
            while (line := stream.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            yield json.loads(stream.read(size))


@contextmanager
def uds_server(path: Path, script: Script = uma_script, lines: bytes = b"") -> Iterator[FakeServer]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    server = FakeServer(listener, script, is_http=False, lines=lines)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def http_server(script: Script = sse_script) -> Iterator[FakeServer]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = FakeServer(listener, script, is_http=True)
    try:
        yield server
    finally:
        server.close()
