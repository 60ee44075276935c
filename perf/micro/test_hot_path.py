"""What a token costs around the decode call: batch fill, text, events, frames, requests."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from uma_core.engine.api import Batch
from uma_core.protocol.connection import Connection, Limits
from uma_core.protocol.events import Token, token_head, token_json
from uma_core.protocol.framing import FrameReader, encode_frame
from uma_core.session.text import TextStream

LIMITS = Limits(1 << 20, 1 << 20, 16)


def request_frame(n_prompt: int) -> bytes:
    return encode_frame(json.dumps({"id": "a", "prompt": "x" * n_prompt, "max_tokens": 8, "temperature": 0}).encode())


@pytest.mark.parametrize("n_rows", [1, 4, 16])
def test_batch_of_decode_rows(benchmark: BenchmarkFixture, n_rows: int) -> None:
    batch = Batch(512)

    def fill() -> None:
        batch.clear()
        for i in range(n_rows):
            batch.add(1000 + i, 300, i, True)

    benchmark(fill)
    assert batch.n == batch.n_rows == n_rows


@pytest.mark.parametrize("n_tokens", [64, 512])
def test_batch_of_a_chunk(benchmark: BenchmarkFixture, n_tokens: int) -> None:
    batch, tokens = Batch(512), np.arange(n_tokens, dtype=np.int32)

    def fill() -> None:
        batch.clear()
        batch.extend(tokens, 128, 3, True)

    benchmark(fill)
    assert batch.n == n_tokens and batch.n_rows == 1


def test_token_event_json(benchmark: BenchmarkFixture) -> None:
    head = token_head("request-1")
    assert json.loads(benchmark(token_json, head, " hello", 12345))["text"] == " hello"


def test_token_event_through_a_connection(benchmark: BenchmarkFixture) -> None:
    connection = Connection(LIMITS)
    connection.receive_data(request_frame(16))
    connection.next_event()
    sent = benchmark(connection.send, Token("a", " hello", 12345))
    assert json.loads(sent[4:])["token_id"] == 12345


@pytest.mark.parametrize("n_prompt", [100, 10_000, 100_000])
def test_request_through_a_connection(benchmark: BenchmarkFixture, n_prompt: int) -> None:
    frame = request_frame(n_prompt)

    def read() -> object:
        connection = Connection(LIMITS)
        connection.receive_data(frame)
        return connection.next_event()

    assert benchmark(read)


def test_frames_out_of_one_read(benchmark: BenchmarkFixture) -> None:
    data = encode_frame(b'{"id":"a","event":"token","text":"x","token_id":1}') * 64

    def read() -> int:
        reader, n = FrameReader(1 << 20), 0
        reader.feed(data)
        while reader.next_payload() is not None:
            n += 1
        return n

    assert benchmark(read) == 64


@pytest.mark.parametrize("stops", [(), ("###", "\n\n")], ids=["no stops", "two stops"])
def test_text_of_a_token(benchmark: BenchmarkFixture, stops: tuple[str, ...]) -> None:
    stream = TextStream(stops)
    assert isinstance(benchmark(stream.push, b" hello"), str)
