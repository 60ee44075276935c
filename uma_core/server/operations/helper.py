"""A separate process that reads large requests: it parses JSON, applies the template and tokenises.

This work holds the GIL or a processor for up to seconds, and streams would wait for either. In another process it does
not touch their GIL, and while all processors compute it works in short turns (native/runtime/gentle.c). A failure
there, such as a crash of a tokeniser or an endless template, ends one request.

Protocol, over a socket pair: a header with the kind and two lengths, then marshalled values, then bytes; answers have
the same form.
"""

from __future__ import annotations

import contextlib
import json
import logging
import marshal
import mmap
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from typing import Any

import numpy as np

from uma_core.errors import BY_CODE, ErrorCode, UmaError
from uma_core.protocol.messages import Source, Unfit
from uma_core.server.io.ports import TextPort
from uma_core.server.operations.large import Digest, Local
from uma_core.server.operations.prompt import Encoded

log = logging.getLogger(__name__)

HEADER = struct.Struct("<BII")  # kind or outcome, size of the marshalled values, size of the bytes after them
DIGEST, ENCODE, ANSWER, PREPARE = range(4)
DONE, REFUSED, UNFIT, STRANGE = range(4)  # STRANGE: the model file is not the one that was loaded
ATTEMPTS = 2  # the process may have ended before this request came
ANSWER_S = 300.0  # a prompt of 64 MiB on a tenth of a processor
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from uma_core.server.operations.helper_child import "
    "main; main(*map(int, sys.argv[2:]))"
)
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "GGML_VK_VISIBLE_DEVICES": ""}  # the process computes nothing


class Flag:
    """One byte that both processes see. Set: streams are being computed and no processor is left for anything else."""

    def __init__(self) -> None:
        # memory without a file on disk: a write to a file's page would wait while that page is written back
        self.fd = _shared_memory()
        os.ftruncate(self.fd, mmap.PAGESIZE)
        self._map = mmap.mmap(self.fd, mmap.PAGESIZE)
        self._is_set = False

    def set(self, is_set: bool) -> None:
        """For one thread. It is called every turn, so it writes only changes."""
        if is_set != self._is_set:
            self._is_set = is_set
            self._map[0] = is_set


def _shared_memory() -> int:
    """Return a descriptor of shared memory, or of a file where the system has none."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("uma-crowded")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Helper:
    """Implements `large.Reader`. The process starts when it is first needed, and again after it has ended."""

    def __init__(self) -> None:
        self.is_crowded = Flag()
        self._local = Local()  # used when the process cannot do it
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()  # protects `_process` and `_socket` against `close`
        self._is_closed = False

    def digest(self, payload: bytes) -> Digest | Unfit:
        try:
            outcome, values, _ = self._ask(DIGEST, (), payload)
        except OSError as error:
            return self._without(error).digest(payload)
        if outcome == UNFIT:
            return Unfit(values[0], _error(values[1:]))
        if outcome == REFUSED:
            return Unfit(None, _error(values))
        return Digest(*values)

    def encode(self, text: TextPort, source: Source) -> Encoded:
        try:
            outcome, values, body = self._ask(ENCODE, (_vocabulary(text), source.is_text), source.payload)
        except OSError as error:
            return self._without(error).encode(text, source)
        if outcome == STRANGE:
            return self._without(values[0]).encode(text, source)
        if outcome == REFUSED:
            raise _error(values)
        return Encoded(np.frombuffer(body, np.int32), tuple(values[0]))

    def answer(self, text: TextPort, op: str, source: Source, cap_bytes: int) -> bytes:
        try:
            outcome, values, body = self._ask(ANSWER, (_vocabulary(text), op, cap_bytes), source.payload)
        except OSError as error:
            return self._without(error).answer(text, op, source, cap_bytes)
        if outcome == STRANGE:
            return self._without(values[0]).answer(text, op, source, cap_bytes)
        if outcome == REFUSED:
            raise _error(values)
        return bytes(body)

    def prepare(self, text: TextPort) -> None:
        """Start the process and load this vocabulary."""
        try:
            self._ask(PREPARE, (_vocabulary(text),), b"")
        except (OSError, UmaError) as error:
            log.info("the process that reads large requests is not ready yet: %s", error)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._end()

    def _without(self, why: object) -> Local:
        log.warning("a large request is read in the daemon's own process: %s", why)
        return self._local

    # the process

    def _ask(self, kind: int, values: tuple[Any, ...], payload: bytes) -> tuple[int, Any, memoryview]:
        """Raises: OSError if the process cannot start, INTERNAL if this request ends it, or SHUTTING_DOWN."""
        for attempt in range(ATTEMPTS):
            with self._lock:
                if self._is_closed:
                    raise UmaError(ErrorCode.SHUTTING_DOWN)
                connection = self._socket if self._process is not None and self._process.poll() is None else None
                if connection is None:
                    connection = self._start()
            try:
                send(connection, kind, values, payload)
                answer = receive(connection)
                if answer is None:
                    raise ConnectionError("its end of the socket closed")
                return answer
            except OSError as error:
                with self._lock:
                    status = self._end()
                    if self._is_closed:
                        raise UmaError(ErrorCode.SHUTTING_DOWN) from None
                if isinstance(error, TimeoutError):
                    raise UmaError(ErrorCode.INTERNAL, "reading the request took too long") from None
                log.warning("the process that reads large requests ended (status %s), attempt %d", status, attempt + 1)
            except Exception:  # no memory: the rest of the answer must not be taken for the next request's
                with self._lock:
                    self._end()
                raise
        raise UmaError(ErrorCode.INTERNAL, "reading the request ended its process")

    def _start(self) -> socket.socket:
        self._end()
        here, there = socket.socketpair()
        try:
            self._process = spawn(there.fileno(), self.is_crowded.fd)
        except OSError:
            here.close()
            raise
        finally:
            there.close()
        self._socket = here
        here.settimeout(ANSWER_S)
        return here

    def _end(self) -> int | None:
        """Return the exit status."""
        process, self._process = self._process, None
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer
            self._socket.close()
            self._socket = None
        if process is None:
            return None
        process.kill()
        return process.wait()


def spawn(*fds: int) -> subprocess.Popen[bytes]:
    """Start the process with its end of the socket and the flag. Raises: OSError."""
    # a session of its own: Ctrl-C reaches only the daemon, which then ends the process
    return subprocess.Popen(
        [sys.executable, "-I", "-c", BOOT, json.dumps(sys.path), *map(str, fds)],
        env={**os.environ, **NO_GPU},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=fds,
        start_new_session=True,
    )


def _vocabulary(text: TextPort) -> tuple[str, str, str]:
    info = text.info
    return info.engine, info.model_path, info.fingerprint


def _error(values: Any) -> UmaError:
    code, message, detail = values
    return UmaError(BY_CODE[code], message, **detail)


def error_values(error: UmaError) -> tuple[str, str, dict[str, Any]]:
    return error.error.code, error.message, error.detail


def send(connection: socket.socket, kind: int, values: Any, body: bytes | memoryview) -> None:
    head = marshal.dumps(values)
    connection.sendall(HEADER.pack(kind, len(head), len(body)) + head)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[int, Any, memoryview] | None:
    """None: the other side has closed."""
    header = _exactly(connection, HEADER.size)
    if header is None:
        return None
    kind, n_head, n_body = HEADER.unpack(header)
    head, body = _exactly(connection, n_head), _exactly(connection, n_body)
    return None if head is None or body is None else (kind, marshal.loads(head), body)


def _exactly(connection: socket.socket, n: int) -> memoryview | None:
    data = memoryview(bytearray(n))
    got = 0
    while got < n:
        more = connection.recv_into(data[got:])
        if not more:
            return None
        got += more
    return data
