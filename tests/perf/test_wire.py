"""The two byte parsers, fed whole and one byte at a time."""

from __future__ import annotations

import json

import pytest

from perf.wire import FrameParser, Parser, SseParser, Tick
from tests.perf.fake_server import frame, sse_script, uma_script

FRAMES = b"".join(uma_script({"id": "a", "max_tokens": 3}))
SSE = b"".join(sse_script({"n_predict": 3}))


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize(("parser", "data", "name"), [(FrameParser, FRAMES, "a"), (SseParser, SSE, "")])
def test_any_chunking_gives_the_same_ticks(parser: type[Parser], data: bytes, name: str, size: int) -> None:
    target = parser()
    ticks = [tick for i in range(0, len(data), size) for tick in target.feed(data[i : i + size])]
    assert [(t.name, t.kind) for t in ticks] == [(name, "token")] * 3 + [(name, "done")]
    assert ticks[-1].n_tokens == 3


def test_openai_form_counts_texts_and_ends_with_done() -> None:
    events = [{"choices": [{"text": "x"}]}, {"choices": [{"text": "", "finish_reason": "length"}]}]
    body = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n"
    ticks = SseParser().feed(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + body)
    assert [t.kind for t in ticks] == ["token", "done"]


def test_events_in_one_chunk_and_a_chunk_across_events() -> None:
    a, b = b'data: {"content":"x"}\n\n', b'data: {"content":"y"}\n\n'
    parser = SseParser()
    body = a + b
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    ticks = parser.feed(head + b"%x\r\n%s\r\n" % (len(body) - 4, body[:-4]))
    ticks += parser.feed(b"4\r\n%s\r\n" % body[-4:])
    assert [t.kind for t in ticks] == ["token", "token"]


def test_error_event_carries_its_code() -> None:
    (tick,) = FrameParser().feed(frame({"id": "q", "event": "error", "code": "E_LIMIT_003", "message": "full"}))
    assert tick == Tick("q", "error", "E_LIMIT_003 full")


def test_unknown_events_are_passed_over() -> None:
    assert FrameParser().feed(frame({"id": "q", "event": "queued", "position": 1})) == []


def test_an_operation_ends_with_its_reply() -> None:
    assert FrameParser().feed(frame({"id": "q", "event": "reply", "type": "status"})) == [Tick("q", "done")]


def test_eof_before_the_end_is_an_error() -> None:
    parser = SseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\n\r\n" + b'data: {"content":"x"}\n\n')
    assert parser.feed_eof()[0].kind == "error"
    done = SseParser()
    done.feed(SSE)
    assert done.feed_eof() == []
