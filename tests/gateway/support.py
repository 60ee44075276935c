"""A gateway in a separate process before a real daemon, and plain HTTP clients of it.

No test asserts wall-clock time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.daemon.support import OF_GATEWAYS, WAIT_S, DaemonProcess, Process, eventually
from tests.forks import server_of

Json = dict[str, Any]


class Answer:
    """A complete HTTP answer."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        head, _, body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1]) if lines[0] else 0
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self.chunks = list(_chunks(body)) if self.headers.get("transfer-encoding") == "chunked" else [body]
        self.body = b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Json:
        error: Json = self.json["error"]
        return error

    @property
    def events(self) -> list[Json]:
        """Return the data of an event stream, without comments and [DONE]."""
        return [json.loads(data) for data in self.data if data != "[DONE]"]

    @property
    def data(self) -> list[str]:
        return [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]

    @property
    def comments(self) -> list[str]:
        return [line[1:].strip() for line in self.body.decode().split("\n") if line.startswith(":")]


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            break
        yield rest[:n]
        body = rest[n + 2 :]


class Raw:
    """A TCP connection on which tests write HTTP by hand."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sock = socket.create_connection(("127.0.0.1", port), WAIT_S)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def send(self, method: str, path: str, body: Any = None, headers: Json | None = None, is_last: bool = True) -> None:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"host": f"127.0.0.1:{self.port}", "content-length": str(len(data)), **(headers or {})}
        if is_last:
            lines.setdefault("connection", "close")
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in lines.items() if value is not None
        )
        self.sock.sendall(head.encode("latin-1") + b"\r\n" + data)

    def rest(self) -> bytes:
        """Return everything until the gateway closes the connection."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := self.sock.recv(1 << 16):
                data += chunk
        return data

    def until(self, text: bytes) -> bytes:
        data = b""
        while text not in data:
            chunk = self.sock.recv(1 << 16)
            assert chunk, f"closed before {text!r}: {data!r}"
            data += chunk
        return data


class GatewayProcess(Process):
    """`uma-gateway` on a free port."""

    def __init__(self, folder: Path, daemon_path: str, *args: str, environ: Json | None = None) -> None:
        self.log_path = folder / f"gateway{len(list(folder.glob('gateway*')))}"
        with self.log_path.open("wb") as log:
            self.process = server_of(*OF_GATEWAYS).start(
                "uma_gateway",
                ["--socket", daemon_path, "--port", "0", *args],
                environ={**os.environ, **(environ or {})},
                stderr=log.fileno(),
            )
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reach(self) -> GatewayProcess:
        """Wait until the gateway listens."""
        found = eventually(
            lambda: re.search(r"listening on \w+://\S+:(\d+)", self.log) or self.process.poll() is not None,
            "the gateway does not listen",
        )
        assert isinstance(found, re.Match), f"ended with {self.process.returncode}: {self.log}"
        self.port = int(found[1])
        return self

    def ask(self, method: str, path: str, body: Any = None, headers: Json | None = None) -> Answer:
        with Raw(self.port) as raw:
            raw.send(method, path, body, headers)
            return Answer(raw.rest())

    def get(self, path: str, **headers: Any) -> Answer:
        return self.ask("GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, headers: Json | None = None, **body: Any) -> Answer:
        return self.ask("POST", path, body, headers)

    def chat(self, content: str = "hello", headers: Json | None = None, **body: Any) -> Answer:
        return self.post(
            "/v1/chat/completions", headers, **{"messages": [{"role": "user", "content": content}], **body}
        )

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()


@contextlib.contextmanager
def gateway_before(folder: Path, daemon: DaemonProcess | str, *args: str, **spawn: Any) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(folder, daemon if isinstance(daemon, str) else daemon.path, *args, **spawn)
    try:
        yield gateway.reach()
    finally:
        if gateway.process.poll() is None:
            gateway.process.kill()
        gateway.wait()


def n_busy(daemon: DaemonProcess) -> int:
    """Return how many requests the daemon still has."""
    return len(daemon.ask("sessions")["sessions"])
