"""A connection to a daemon's socket that uses only struct and json."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, TypeVar

Event = dict[str, Any]
Self = TypeVar("Self", bound="Frames")
WAIT_S = 120.0  # a test that waits this long has failed; no test depends on the value


class Frames:
    """One end of the connection. Every method blocks."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(path)  # waits while the backlog is full; with a timeout set, it would fail
        self.sock.settimeout(WAIT_S)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def send(self, **request: Any) -> None:
        payload = json.dumps(request).encode()
        self.sock.sendall(struct.pack("<I", len(payload)) + payload)

    def exactly(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            chunk = self.sock.recv(n - len(data))
            if not chunk:
                raise EOFError(f"the daemon hung up after {data!r}")
            data += chunk
        return data

    def event(self) -> Event:
        (length,) = struct.unpack("<I", self.exactly(4))
        event: Event = json.loads(self.exactly(length))
        return event
