"""The program of the helper process: it answers requests one by one until the daemon closes its end of the socket."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

from uma_core.allocator import tame_allocator
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.engine.gentle import gently
from uma_core.engine.vocabulary import Vocabulary
from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.messages import Unfit
from uma_core.server.io.ports import Reading
from uma_core.server.memory import budget
from uma_core.server.operations.helper import (
    ANSWER,
    DIGEST,
    DONE,
    ENCODE,
    PREPARE,
    REFUSED,
    STRANGE,
    UNFIT,
    error_values,
    receive,
    send,
)
from uma_core.server.operations.large import answer_source, digest, encode_source

VOCABULARIES = 2  # for the old and new model of a reload
TRIM_BYTES = 1 << 20  # larger requests leave freed memory behind

Outcome = tuple[int, Any, bytes]


class Strange(Exception):
    """The model file is not the one that the daemon loaded."""


def main(fd: int, flag_fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    is_crowded = mmap.mmap(flag_fd, mmap.PAGESIZE)
    os.close(flag_fd)
    connection = socket.socket(fileno=fd)
    tame_allocator()
    with contextlib.suppress(ConnectionError):  # a killed daemon may reset the socket
        while connection.recv(1, socket.MSG_PEEK):  # sleeps until a request comes
            with gently(is_crowded):
                n_bytes = _serve(connection)
                if n_bytes > TRIM_BYTES:
                    budget.give_back()


def _serve(connection: socket.socket) -> int:
    """Answer one request. Returns its size."""
    asked = receive(connection)
    if asked is None:
        return 0
    kind, values, body = asked
    send(connection, *_outcome(kind, values, bytes(body)))
    return len(body)


def _outcome(kind: int, values: Any, payload: bytes) -> Outcome:
    try:
        return _WORK[kind](payload, *values)
    except UmaError as error:
        return REFUSED, error_values(error), b""
    except Strange as error:
        return STRANGE, (str(error),), b""
    except Exception as error:
        return (
            REFUSED,
            error_values(UmaError(ErrorCode.INTERNAL, f"reading the request failed: {type(error).__name__}: {error}")),
            b"",
        )


def _digest(payload: bytes) -> Outcome:
    found = digest(payload)
    if isinstance(found, Unfit):
        return UNFIT, (found.wire_id, *error_values(found.error)), b""
    return DONE, tuple(found), b""


def _encode(payload: bytes, vocabulary: tuple[str, str, str], is_text: bool) -> Outcome:
    encoded = encode_source(_text(*vocabulary), payload, is_text)
    return DONE, (encoded.message_ends,), np.asarray(encoded.tokens, np.int32).tobytes()


def _answer(payload: bytes, vocabulary: tuple[str, str, str], op: str, cap_bytes: int) -> Outcome:
    return DONE, (), answer_source(_text(*vocabulary), op, payload, cap_bytes)


def _prepare(payload: bytes, vocabulary: tuple[str, str, str]) -> Outcome:
    _text(*vocabulary)
    return DONE, (), b""


@functools.lru_cache(maxsize=VOCABULARIES)
def _text(engine: str, path: str, fingerprint: str) -> Reading:
    """Return the model's text side. Raises: Strange."""
    if engine == "fake":
        return FakeEngine(FakeModel())
    try:
        text = Vocabulary(path)
    except UmaError as error:
        raise Strange(f"{path}: {error}") from None
    if text.fingerprint != fingerprint:
        raise Strange(f"{path} is not the file that was loaded")
    return text


_WORK: dict[int, Callable[..., Outcome]] = {DIGEST: _digest, ENCODE: _encode, ANSWER: _answer, PREPARE: _prepare}
