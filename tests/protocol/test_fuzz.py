"""Any bytes give events or coded errors, and never another exception. Chunking changes nothing."""

from __future__ import annotations

import json
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.errors import BY_CODE, UmaError
from uma_core.protocol.connection import Connection, Limits, Rejected, Signal
from uma_core.protocol.events import Eos, Error, Reply, Token
from uma_core.protocol.framing import encode_frame
from uma_core.types import FinishReason

N_STRINGS = 100_000 if os.environ.get("UMA_FUZZ") == "full" else 5_000
LIMITS = Limits(frame_cap_bytes=4096, line_cap_bytes=512, max_in_flight=3, has_echo=True)
SEEDS = (
    b'{"id":"a","prompt":"hi"}',
    b'{"id":1,"type":"cancel"}',
    b'{"type":"metrics","format":"prometheus"}',
    b'{"messages":[{"role":"user","content":"x"}],"slo":{"target_ttft_ms":5}}',
    b'{"tokens":[1,2,3],"stop":["x"],"seed":1,"stream":false}',
    b'{"prompt":"\\ud83d\\ude00","metadata":{"a":[1e5,null,true]}}',
)
TEXT = (b"Hello\n", b"/status\n", b"/metrics\r\n", b"\n", b"Hi\n", b'{"prompt":"x"}\n', "Grüße\n".encode())


def random_stream(rng: random.Random) -> bytes:
    """Noise, frames, lines, and all of them mixed and damaged."""
    parts = []
    for _ in range(rng.randrange(1, 5)):
        kind = rng.randrange(5)
        if kind == 0:
            parts.append(rng.randbytes(rng.randrange(64)))
        elif kind == 1:
            parts.append(encode_frame(rng.choice(SEEDS)))
        elif kind == 2:
            parts.append(rng.choice(TEXT))
        else:
            parts.append(
                mutate(rng, rng.choice((encode_frame(rng.choice(SEEDS)), rng.choice(TEXT), rng.choice(SEEDS) + b"\n")))
            )
    return b"".join(parts)


def mutate(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(damaged) + 1)
        action = rng.randrange(3)
        if action == 0 and at < len(damaged):
            damaged[at] = rng.randrange(256)
        elif action == 1:
            damaged[at:at] = rng.choice((b"\0", b"\n", b"{", b'"', b"\xff", b"\\u0000", b"1e999", b"[" * 50))
        else:
            del damaged[at : at + rng.randrange(1, 6)]
    return bytes(damaged)


def converse(stream: bytes, step: int) -> list[str]:
    """Play a server that answers every request at once. Return what it received and sent."""
    connection, log = Connection(LIMITS), []
    for i in range(0, len(stream), step):
        connection.receive_data(stream[i : i + step])
        answer_all(connection, log)
    connection.disambiguate()
    answer_all(connection, log)
    connection.receive_eof()
    answer_all(connection, log)
    assert not connection.in_flight
    assert connection.next_event() is Signal.END
    return log


def answer_all(connection: Connection, log: list[str]) -> None:
    while not isinstance(event := connection.next_event(), Signal):
        if isinstance(event, Rejected):
            assert event.error.error.code in BY_CODE
            log.append(event.error.error.code)
            assert connection.send(event)
        elif event.request is not None:
            log.append(f"generate {event.id}")
            assert connection.send(Token(event.id, "x", 1))
            assert connection.send(Eos(event.id, FinishReason.STOP, "", {}, {}))
        else:
            log.append(event.op.name)
            id = "" if event.op.name == "cancel" else event.id
            assert connection.send(Reply(id, event.op.name, {"found": False}, event.wire_id))
    assert event is not Signal.PAUSED, "nothing is in flight"


@pytest.mark.fuzz
def test_any_bytes_give_events_or_coded_errors():
    rng = random.Random(2)
    n_requests = n_errors = 0
    for _ in range(N_STRINGS):
        stream = random_stream(rng)
        log = converse(stream, len(stream) or 1)
        assert converse(stream, 1) == log, stream
        n_errors += sum(entry.startswith("E_") for entry in log)
        n_requests += sum(not entry.startswith("E_") for entry in log)
    assert n_requests > N_STRINGS // 10
    assert n_errors > N_STRINGS // 10


@given(st.binary(max_size=200), st.integers(1, 9))
def test_any_bytes_in_any_chunks(stream, step):
    assert converse(stream, step) == converse(stream, max(1, len(stream)))


@given(st.dictionaries(st.text(max_size=6), st.floats() | st.text(max_size=6)))
def test_any_reply_is_encoded_or_refused(data):
    connection = Connection(LIMITS)
    connection.receive_data(encode_frame(b'{"type":"status","id":"s"}'))
    connection.next_event()
    try:
        frame = connection.send(Reply("s", "status", data))
    except ValueError:
        frame = connection.send(Error("s", UmaError(BY_CODE["E_INTERNAL_003"])))
    assert json.loads(frame[4:])["id"] == "s"
