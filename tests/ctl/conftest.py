"""A scripted server that speaks the protocol over a real Unix socket, and helpers that run commands against it."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.ctl.commands import run
from tests.folders import short_folder
from uma_core.protocol.framing import FrameReader, encode_frame

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 20.0  # far more than anything takes: a test that waits this long has failed


class Peer:
    """The server's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.is_over = threading.Event()  # the client hung up

    def send(self, **event) -> None:
        self.raw(encode_frame(json.dumps(event).encode()))

    def token(self, id, text: str) -> None:
        self.send(id=id, event="token", text=text, token_id=1)

    def eos(self, id, reason: str = "stop", **more) -> None:
        usage = {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 2}
        self.send(id=id, event="eos", reason=reason, usage=usage, timing={"ttft_ms": 1.5, "total_ms": 10.0}, **more)

    def reply(self, message: dict, **fields) -> None:
        self.send(**{**fields, "id": message["id"], "event": "reply", "type": message["type"]})

    def refuse(self, id, code: str, name: str, message: str = "no", **detail) -> None:
        self.send(id=id, event="error", code=code, name=name, message=message, detail=detail)

    def raw(self, data: bytes) -> None:
        try:
            self.connection.sendall(data)
        except OSError:  # the client hung up
            self.is_over.set()

    def hang_up(self) -> None:
        with suppress(OSError):  # the client closed first
            self.connection.shutdown(socket.SHUT_RDWR)


class FakeServer:
    """Calls `script(peer, message)` for every request, each connection on a thread of its own."""

    def __init__(self, path: str, script) -> None:
        self.path = path
        self.script = script
        self.received: list[dict] = []
        self.peers: list[Peer] = []
        self.failures: list[BaseException] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(8)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.peers.append(Peer(connection))
            threading.Thread(target=self._serve, args=(self.peers[-1],), daemon=True).start()

    def _serve(self, peer: Peer) -> None:
        frames = FrameReader(1 << 24)
        try:
            while data := peer.connection.recv(65536):
                frames.feed(data)
                while (payload := frames.next_payload()) is not None:
                    message = json.loads(payload.decode("utf-8", "surrogateescape"))
                    self.received.append(message)
                    self.script(peer, message)
        except OSError:
            pass  # the connection is over
        except BaseException as error:  # the fixture shows it: an assertion in a script must fail the test
            self.failures.append(error)
            peer.hang_up()
        finally:
            peer.is_over.set()
            peer.connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._listener.close()
        for peer in self.peers:
            peer.hang_up()


@pytest.fixture
def socket_path():
    with short_folder() as folder:
        yield str(folder / "s")


@pytest.fixture
def serve(socket_path):
    """`serve(script)` starts a server on `socket_path`."""
    servers: list[FakeServer] = []

    def start(script) -> FakeServer:
        servers.append(FakeServer(socket_path, script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
        assert not server.failures


def arguments(module: str, *args: str) -> list[str]:
    return [sys.executable, "-m", module, *args]


@pytest.fixture
def environment(socket_path):
    return {**os.environ, "UMA_SOCK": socket_path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


@pytest.fixture
def ctl(environment):
    """`ctl("status", "--json")` runs uma-ctl in a separate process until it ends."""
    return lambda *args, **more: run("uma_ctl", *args, environment=environment, **more)


@pytest.fixture
def cli(environment):
    return lambda *args, **more: run("uma_ctl.cli", *args, environment=environment, **more)


@pytest.fixture
def start(environment):
    """`start("uma_ctl", "chat")` starts a command with pipes; it is killed if the test leaves it running."""
    started: list[subprocess.Popen] = []

    def begin(module: str, *args: str, **more) -> subprocess.Popen:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        started.append(subprocess.Popen(arguments(module, *args), env=environment, text=True, **{**pipes, **more}))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def read_until():
    """`read(descriptor, wanted, timeout_s)`: read everything up to and including `wanted`. Raises: TimeoutError."""

    def read(descriptor: int, wanted: bytes, timeout_s: float = 30.0) -> bytes:
        seen = b""
        while wanted not in seen:
            if not select.select([descriptor], [], [], timeout_s)[0]:
                raise TimeoutError(f"{wanted!r} did not come after {seen!r}")
            seen += os.read(descriptor, 65536)
        return seen

    return read
