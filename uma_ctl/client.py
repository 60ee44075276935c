"""A blocking client with one connection: requests out, events in.

Rules: nothing here prints or exits; every failure is a `CtlError`. Not thread-safe, except that a signal handler may
send a cancel while events are being read (see `interrupt.py`).
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from uma_core import endpoint
from uma_core.errors import UmaError
from uma_core.protocol.framing import FrameReader, encode_frame
from uma_ctl.errors import BrokenProtocol, CannotConnect, CtlError, NoAnswer, NoDaemon, ServerError

DEFAULT_TIMEOUT_S = 10.0
REPLY_CAP_BYTES = 64 << 20  # a reply may be larger than a request: `sessions` and `trace` of a busy daemon
READ_BYTES = 65536
BACKLOG_PAUSE_S = 0.01

Event = dict[str, Any]


class Client:
    """One connection to a daemon, at `path` or at the first default path on which a daemon listens.

    Blocks for at most `timeout_s` per event (None: without limit). Raises: CannotConnect, also if an untrusted user
    listens there.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> None:
        self._numbers = itertools.count(1)
        self._frames = FrameReader(REPLY_CAP_BYTES)
        self._socket, self.path = _connect(None if path is None else os.fspath(path), timeout_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up: the daemon cancels the requests of this connection. Idempotent."""
        self._socket.close()

    def set_timeout(self, seconds: float | None) -> None:
        """Block for at most this long per event from now on. Raises: BrokenProtocol after `close`."""
        try:
            self._socket.settimeout(seconds)
        except OSError as error:
            raise BrokenProtocol(f"the connection broke: {error.strerror}") from None

    def new_id(self) -> str:
        return f"r{next(self._numbers)}"

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one request. Raises: CtlError if it cannot be written, BrokenProtocol if the peer is gone."""
        try:
            text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        except RecursionError:
            raise CtlError("the request is nested too deeply") from None
        try:
            payload = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise CtlError("the request contains half of a surrogate pair, which is not text") from None
        try:
            self._socket.sendall(encode_frame(payload))
        except (TimeoutError, BlockingIOError):  # the latter with a timeout of 0
            raise NoAnswer("the daemon does not read its socket") from None
        except OSError as error:
            # A peer that refuses the connection may have sent its reason before it hung up; the next read shows it.
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise BrokenProtocol(f"the connection broke: {error.strerror}") from None

    def next_event(self) -> Event:
        """Wait for the next event. Raises: BrokenProtocol, NoAnswer."""
        while True:
            try:
                payload = self._frames.next_payload()
            except UmaError as error:
                raise BrokenProtocol(f"the peer does not speak this protocol: {error.message}") from None
            if payload is not None:
                return _parse(payload)
            self._frames.feed(self._receive())

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(READ_BYTES)
        except (TimeoutError, BlockingIOError):
            raise NoAnswer("no answer from the daemon in time") from None
        except OSError as error:
            raise BrokenProtocol(f"the connection broke: {error.strerror}") from None
        if not data:
            raise BrokenProtocol("the daemon hung up before the final event")
        return data

    def generate(self, request: Mapping[str, Any]) -> Iterator[Event]:
        """Send a generate request, which must have an id, and return an iterator over its events, including the final
        one.

        Events of other requests are skipped, and so is the reply to a cancel. An error without an id belongs to this
        request.
        """
        self.send(request)
        return self._events(request["id"])

    def _events(self, request_id: str) -> Iterator[Event]:
        while True:
            event = self.next_event()
            if event.get("id") not in (request_id, None) or event.get("event") == "reply":
                continue
            yield event
            if event.get("event") in ("eos", "error"):
                return

    def cancel(self, request_id: str) -> None:
        """Ask the daemon to end a request of this connection; the final event still comes."""
        self.send({"type": "cancel", "id": request_id})

    def call(self, operation: str, request_id: str | None = None, **fields: Any) -> Event:
        """Run an operation other than generate and return its reply. Fields that are None are left out.

        Raises: ServerError, BrokenProtocol, NoAnswer.
        """
        request_id = request_id or self.new_id()
        self.send(
            {"type": operation, "id": request_id, **{key: value for key, value in fields.items() if value is not None}}
        )
        while True:
            event = self.next_event()
            if event.get("id") not in (request_id, None):
                continue
            if event.get("event") == "error":
                raise ServerError(event)
            if event.get("event") == "reply":
                return event


def fields_of(reply: Mapping[str, Any]) -> Event:
    """Return the operation's own fields of a reply."""
    return {key: value for key, value in reply.items() if key not in ("id", "event", "type")}


def _parse(payload: bytes) -> Event:
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError):
        raise BrokenProtocol("the peer sent a frame that is not JSON") from None
    if not isinstance(event, dict):
        raise BrokenProtocol("the peer sent a frame that is not an object")
    return event


def _connect(path: str | None, timeout_s: float | None) -> tuple[socket.socket, str]:
    """Return the connection and its path. Raises: NoDaemon, CannotConnect."""
    refusals: list[str] = []  # paths on which no daemon listens, each with the reason
    for place in endpoint.places(os.environ) if path is None else (path,):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        try:
            _connect_patiently(connection, place, timeout_s)
            _check_listener(connection, place)
            return connection, place
        except (FileNotFoundError, ConnectionRefusedError) as error:
            connection.close()
            refusals.append(f"{place}: {_reason(error)}")
        except (OSError, ValueError) as error:  # ValueError: a path with NUL
            connection.close()
            raise CannotConnect(f"cannot connect to {place}: {_reason(error)}") from None
        except CannotConnect:
            connection.close()
            raise
    raise NoDaemon(f"cannot connect to {'; to '.join(refusals)}; start a daemon with: uma-core daemon")


def _check_listener(connection: socket.socket, path: str) -> None:
    """Refuse an untrusted listener before anything is sent: in /tmp another user may have created the socket first.
    Raises: CannotConnect.
    """
    try:
        uid = endpoint.stranger(connection, path, os.environ)
    except ValueError:
        raise CannotConnect(
            f"{endpoint.TRUSTED} must be user ids separated by commas, not {os.environ[endpoint.TRUSTED]!r}"
        ) from None
    if uid is not None:
        text = (
            f"uid {uid} listens on {path} and is neither you nor root, so nothing was sent; {endpoint.TRUSTED}={uid} "
            "trusts that user"
        )
        raise CannotConnect(text)


def _connect_patiently(connection: socket.socket, path: str, timeout_s: float | None) -> None:
    """Connect, retrying until the time has passed. A Unix socket with a timeout does not wait for a place in the
    daemon's backlog: connect fails at once (EAGAIN).
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            connection.connect(path)
            return
        except BlockingIOError:
            if deadline is not None and time.monotonic() >= deadline:
                raise
            time.sleep(BACKLOG_PAUSE_S)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such socket"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there (it is a stale socket, or no socket at all)"
    if isinstance(error, PermissionError):
        return "permission denied (the socket belongs to another user)"
    return getattr(error, "strerror", None) or str(error)
