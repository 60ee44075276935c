from __future__ import annotations

import json

import pytest

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.connection import HELP_LINE, Connection, Limits, Rejected, Signal
from uma_core.protocol.events import Eos, Error, Reply, Started, Token
from uma_core.protocol.framing import HEADER, encode_frame
from uma_core.protocol.lines import Mode
from uma_core.protocol.messages import Large, Message, Source, Unfit, decode, decode_id, parse_object
from uma_core.types import FinishReason


def unframe(data: bytes) -> list[dict]:
    events = []
    while data:
        (length,) = HEADER.unpack_from(data)
        events.append(json.loads(data[4 : 4 + length]))
        data = data[4 + length :]
    return events


def eos(id: str, reason: FinishReason = FinishReason.STOP, text: str = "", error: UmaError | None = None) -> Eos:
    return Eos(id, reason, text, {"prompt_tokens": 1}, {"ttft_ms": 2.5}, error)


def test_a_request_in_frames(chunked):
    driver = chunked().frame(b'{"id":"a","prompt":"hi"}')
    assert driver.connection.mode is Mode.FRAMES
    assert [message.request.prompt for message in driver.messages] == ["hi"]
    assert unframe(driver.send(Started("a"))) == []
    assert unframe(driver.send(Token("a", 'né"\n', 5))) == [
        {"id": "a", "event": "token", "text": 'né"\n', "token_id": 5}
    ]
    assert unframe(driver.send(eos("a"))) == [
        {"id": "a", "event": "eos", "reason": "stop", "usage": {"prompt_tokens": 1}, "timing": {"ttft_ms": 2.5}}
    ]
    assert driver.connection.in_flight == {}


def test_the_id_comes_back_in_its_own_type(driver):
    driver.frame(b'{"id":7,"prompt":"hi"}').frame(b'{"id":"8","prompt":"hi"}')
    assert unframe(driver.send(Token("7", "x", 1)))[0]["id"] == 7
    assert unframe(driver.send(Token("8", "x", 1)))[0]["id"] == "8"


def test_a_request_without_an_id_gets_a_free_one(driver):
    driver.frame(b'{"id":"#1","prompt":"hi"}').frame(b'{"prompt":"hi"}')
    assert [message.id for message in driver.messages] == ["#1", "#2"]
    assert driver.messages[1].request.id == "#2"
    assert unframe(driver.send(Token("#2", "x", 1)))[0]["id"] == "#2"


def test_text_and_error_of_a_request_that_does_not_stream(driver):
    driver.frame(b'{"id":"a","prompt":"hi","stream":false}').frame(b'{"id":"b","prompt":"hi"}')
    assert unframe(driver.send(eos("a", text="all")))[0]["text"] == "all"
    failed = unframe(driver.send(eos("b", FinishReason.ERROR, error=UmaError(ErrorCode.DECODE_FAILED, "boom", rc=-3))))[
        0
    ]
    assert failed["error"] == {
        "code": "E_RUNTIME_001",
        "name": "decode_failed",
        "message": "boom",
        "detail": {"rc": -3},
    }


def test_an_id_in_flight_is_refused_without_ending_the_first(driver):
    driver.frame(b'{"id":"a","prompt":"hi"}').frame(b'{"id":"a","prompt":"again"}')
    (event,) = unframe(driver.sent)
    assert (event["id"], event["code"], event["detail"]["id"]) == (None, "E_PROTO_006", "a")
    assert "a" in driver.connection.in_flight
    driver.send(eos("a"))
    driver.frame(b'{"id":"a","prompt":"third"}')
    assert driver.messages[-1].request.prompt == "third"


def test_a_bad_request_under_an_id_in_flight_does_not_end_the_first(driver):
    driver.frame(b'{"id":"a","prompt":"hi"}').frame(b'{"id":"a","prompt":5}')
    assert unframe(driver.sent)[0]["id"] is None


def test_too_many_in_flight(make_driver):
    driver = make_driver(Limits(1 << 20, 1 << 16, max_in_flight=2))
    for id in (b"a", b"b", b"c"):
        driver.frame(b'{"id":"%s","prompt":"hi"}' % id)
    (event,) = unframe(driver.sent)
    assert (event["id"], event["name"], event["detail"]["limit"]) == ("c", "too_many_sessions", 2)
    driver.send(Error("a", UmaError(ErrorCode.OVERLOADED)))
    driver.frame(b'{"id":"c","prompt":"hi"}')
    assert set(driver.connection.in_flight) == {"b", "c"}


def test_cancel_answers_beside_the_request_it_names(driver):
    driver.frame(b'{"id":5,"prompt":"hi"}').frame(b'{"type":"cancel","id":5}')
    cancel = driver.messages[1]
    assert cancel.op.name == "cancel"
    reply = unframe(driver.send(Reply("", "cancel", {"found": True}, cancel.wire_id)))
    assert reply == [{"found": True, "id": 5, "event": "reply", "type": "cancel"}]
    assert "5" in driver.connection.in_flight


def test_a_reply_frees_its_id(driver):
    driver.frame(b'{"type":"status","id":"s"}')
    assert unframe(driver.send(Reply("s", "status", {"state": "ready"}))) == [
        {"state": "ready", "id": "s", "event": "reply", "type": "status"}
    ]
    assert driver.connection.in_flight == {}


def test_an_operation_without_an_id_is_answered_with_null(driver):
    driver.frame(b'{"type":"health"}').frame(b'{"type":"trace"}')
    first, second = (message.id for message in driver.messages)
    assert unframe(driver.send(Reply(second, "trace", {}))) == [{"id": None, "event": "reply", "type": "trace"}]
    assert set(driver.connection.in_flight) == {first}


def test_other_operations_are_limited_apart_from_generate(make_driver):
    driver = make_driver(Limits(1 << 20, 1 << 16, max_in_flight=2)).frame(b'{"prompt":"a"}').frame(b'{"prompt":"a"}')
    for _ in range(3):
        driver.frame(b'{"type":"trace"}')
    assert [event["name"] for event in unframe(driver.sent)] == ["too_many_sessions"]
    assert len(driver.connection.in_flight) == 4


def test_an_error_that_closes_ends_the_input(chunked):
    driver = chunked().frame(b'{"id":"a","prompt":"hi"}').feed(b"\xff\xff\xff\x00" + b'{"id":"b"}')
    (event,) = unframe(driver.sent)
    assert (event["id"], event["name"]) == (None, "frame_too_large")
    assert driver.connection.is_closing
    assert driver.signal is Signal.END
    assert len(driver.messages) == 2


def test_the_first_frame_above_the_cap_is_answered_in_a_frame(chunked):
    driver = chunked().feed((1 << 21).to_bytes(4, "little"))
    assert unframe(driver.sent)[0]["name"] == "frame_too_large"


def test_the_stream_ends_inside_a_frame(chunked):
    driver = chunked().feed(b"\x10\0\0\0{}").eof()
    assert unframe(driver.sent)[0]["name"] == "bad_frame"


def test_end_of_stream_after_whole_requests_leaves_them_in_flight(chunked):
    driver = chunked().frame(b'{"id":"a","prompt":"hi"}').eof()
    assert driver.signal is Signal.END
    assert not driver.connection.is_closing
    assert unframe(driver.send(Token("a", "x", 1)))


def test_a_silent_connection_that_ends(driver):
    driver.eof()
    assert (driver.signal, driver.messages, driver.connection.mode) == (Signal.END, [], Mode.UNDECIDED)


# lines


def test_a_prompt_line_streams_raw_text(chunked):
    driver = chunked().feed(b"Hello\r\n")
    (message,) = driver.messages
    assert (message.op.name, message.request.prompt) == ("generate", "Hello")
    assert driver.send(Started(message.id)) == b""
    assert driver.send(Token(message.id, "wörld", 1)) == "wörld".encode()
    assert driver.send(eos(message.id)) == b"\n"


@pytest.mark.parametrize(
    ("event", "tail"),
    [
        (eos("#1", FinishReason.LENGTH), b"\n"),
        (eos("#1", FinishReason.TIMEOUT), b"\n[timeout]\n"),
        (
            eos("#1", FinishReason.ERROR, error=UmaError(ErrorCode.DECODE_FAILED, "boom")),
            b"\n[E_RUNTIME_001 decode_failed: boom]\n",
        ),
        (Error("#1", UmaError(ErrorCode.OVERLOADED, "busy")), b"[E_LIMIT_003 overloaded: busy]\n"),
    ],
)
def test_how_raw_text_ends(driver, event, tail):
    driver.feed(b"Hello\n")
    assert driver.send(event) == tail
    assert not driver.connection.is_closing


def test_echo_comes_when_the_request_is_accepted(make_driver):
    driver = make_driver(Limits(1 << 20, 1 << 16, 4, has_echo=True)).feed("Grüß\n".encode())
    assert driver.send(Started(driver.messages[0].id)) == "Grüß".encode()


@pytest.mark.parametrize("line", [b"H\n", b"Hi\n", b"?\r\n"])
def test_a_line_shorter_than_a_header_waits_for_silence(chunked, line):
    driver = chunked().feed(line)
    assert driver.messages == []
    assert driver.connection.is_ambiguous
    driver.disambiguate()
    assert driver.messages[0].request.prompt == line.decode().strip()


def test_a_short_line_needs_no_silence_when_the_stream_ends(chunked):
    assert chunked().feed(b"Hi").eof().messages[0].request.prompt == "Hi"


def test_silence_decides_nothing_without_a_newline(driver):
    driver.feed(b"Hi").disambiguate()
    assert driver.connection.mode is Mode.UNDECIDED


def test_a_frame_that_begins_like_a_short_line(chunked):
    payload = b'{"prompt":"%s"}' % (b"x" * (0x0A61 - 13))
    assert len(payload) == 0x0A61  # its header is b"a\n\0\0"
    assert len(chunked().frame(payload).messages) == 1


def test_lines_after_a_prompt_wait_for_its_end(chunked):
    driver = chunked().feed(b"first\nsecond\n/status\n")
    assert [message.request.prompt for message in driver.messages] == ["first"]
    assert driver.signal is Signal.PAUSED
    driver.send(eos(driver.messages[0].id))
    driver.pump()
    assert driver.messages[1].request.prompt == "second"
    driver.send(eos(driver.messages[1].id))
    driver.pump()
    assert driver.messages[2].op.name == "status"


def test_empty_lines_are_nothing(chunked):
    assert [message.request.prompt for message in chunked().feed(b"\n\r\n  \nHello\n").messages] == ["Hello"]


def test_json_lines(chunked):
    driver = chunked().feed(b'{"id":1,"prompt":"a"}\n{"id":2,"prompt":"b"}\n')
    assert [message.id for message in driver.messages] == ["1", "2"]
    assert driver.send(Token("2", "x", 9)) == b'{"id":2,"event":"token","text":"x","token_id":9}\n'
    assert json.loads(driver.send(eos("1")))["reason"] == "stop"


def test_a_prompt_line_waits_for_json_requests(driver):
    driver.feed(b'{"id":1,"prompt":"a"}\nplain\n')
    assert driver.signal is Signal.PAUSED
    driver.send(eos("1"))
    assert driver.pump().messages[1].request.prompt == "plain"


def test_errors_of_json_lines_are_json(chunked):
    driver = chunked().feed(b'{"prompt":1}\n{oops\n')
    assert [json.loads(line)["name"] for line in driver.sent.splitlines()] == ["bad_request", "invalid_json"]


def test_errors_of_text_lines_are_text(chunked):
    driver = chunked().feed(b"Hel\xfflo\nplain\n")
    assert driver.sent.startswith(b"[E_PROTO_005 bad_utf8: ")
    assert driver.messages[1].request.prompt == "plain"


@pytest.mark.parametrize(("begin", "is_json"), [(b"{", True), (b"x", False)])
def test_a_line_above_the_cap_closes(chunked, begin, is_json):
    driver = chunked(Limits(1 << 20, 64, 4)).feed(begin + b"x" * 100)
    assert driver.sent.startswith(b"{" if is_json else b"[E_LIMIT_002")
    assert driver.connection.is_closing
    assert isinstance(driver.messages[0], Rejected)


@pytest.mark.parametrize(
    ("command", "op", "data", "line"),
    [
        (b"/status", "status", {"state": "ready"}, b'{"state":"ready"}'),
        (b"/metrics", "metrics", {"metrics": {"a": 1}}, b'{"a":1}'),
        (b"/metrics prometheus", "metrics", {"text": "# HELP a b\na 1\n"}, b"# HELP a b\na 1"),
        (b"/help", "help", {"ops": []}, HELP_LINE.encode()),
    ],
)
def test_a_command_answers_one_line_and_closes(chunked, command, op, data, line):
    driver = chunked().feed(command + b"\r\n")
    (message,) = driver.messages
    assert message.op.name == op
    assert driver.send(Reply(message.id, op, data)) == line + b"\n"
    assert driver.connection.is_closing


def test_a_slash_alone_is_no_command(driver):
    assert driver.feed(b"/etc/passwd is a file\n").messages[0].request.prompt == "/etc/passwd is a file"


def test_problems_of_the_connection_use_its_language(driver, make_driver):
    idle = Error("", UmaError(ErrorCode.IDLE_TIMEOUT, "bye"))
    assert unframe(driver.send(idle))[0]["name"] == "idle_timeout"
    assert make_driver().feed(b"\n\n\n\nHello\n").send(idle) == b"[E_LIMIT_005 idle_timeout: bye]\n"
    assert json.loads(make_driver().feed(b'{"type":"health"}\n').send(idle))["id"] is None


def test_events_of_unknown_ids_are_our_bug(driver):
    for event in (Token("x", "a", 1), eos("x"), Started("x"), Error("x", UmaError(ErrorCode.INTERNAL))):
        with pytest.raises(LookupError):
            driver.send(event)


def test_a_reply_that_json_cannot_say_keeps_its_id(driver):
    driver.frame(b'{"type":"status","id":"s"}')
    with pytest.raises(ValueError):
        driver.send(Reply("s", "status", {"x": float("nan")}))
    assert unframe(driver.send(Error("s", UmaError(ErrorCode.INTERNAL))))[0]["id"] == "s"


LARGE = Limits(frame_cap_bytes=1 << 20, line_cap_bytes=1 << 16, max_in_flight=4, inline_bytes=200)


def large_one(**fields) -> bytes:
    return json.dumps({"x_filler": "y" * 300, **fields}).encode()


def message(payload: bytes) -> Message:
    value = parse_object(payload)
    return decode(value, decode_id(value))


@pytest.mark.parametrize("wrap", [encode_frame, lambda payload: payload + b"\n"])
def test_a_large_request_is_decoded_elsewhere_and_what_follows_waits(wrap):
    connection = Connection(LARGE)
    payload = large_one(id="a", prompt="hi")
    connection.receive_data(wrap(payload) + wrap(b'{"id":"a","type":"cancel"}'))
    assert connection.next_event() == Large(payload)
    assert connection.is_waiting
    assert connection.next_event() is Signal.PAUSED
    assert connection.resume(message(payload)).request.prompt == "hi"
    assert list(connection.in_flight) == ["a"]
    assert connection.next_event().op.name == "cancel"


def test_a_large_request_that_is_none():
    connection = Connection(LARGE)
    connection.receive_data(encode_frame(large_one(id=5, prompt=1)))
    assert isinstance(connection.next_event(), Large)
    rejected = connection.resume(Unfit(5, UmaError(ErrorCode.BAD_REQUEST, "no")))
    assert json.loads(connection.send(rejected)[4:])["id"] == 5
    assert connection.next_event() is Signal.NEED_DATA


@pytest.mark.parametrize("text", ["a\0b", "half \ud800"])
def test_a_text_that_is_none_is_refused_under_the_requests_id(text):
    """Otherwise a client that waits for this id would wait for ever."""
    payload = json.dumps({"id": "a", "prompt": text}).encode()
    connection = Connection(Limits(1 << 20, 1 << 16, 4))
    connection.receive_data(encode_frame(payload))
    refused = json.loads(connection.send(connection.next_event())[4:])
    assert (refused["id"], refused["name"]) == ("a", "bad_utf8")
    connection.receive_data(encode_frame(json.dumps({"id": text, "prompt": "a"}).encode()))
    assert json.loads(connection.send(connection.next_event())[4:])["id"] is None


def test_a_large_request_under_an_id_that_is_taken_or_without_one():
    connection = Connection(LARGE)
    first, second = large_one(id="a", prompt="x"), large_one(prompt="x")
    connection.receive_data(b"".join(map(encode_frame, (b'{"id":"a","prompt":"x"}', first, second))))
    connection.next_event()
    assert isinstance(connection.next_event(), Large)
    assert connection.resume(message(first)).error.error is ErrorCode.DUPLICATE_ID
    assert isinstance(connection.next_event(), Large)
    assert connection.resume(message(second)).request.id == "#1"


def test_a_long_prompt_line_keeps_its_text_in_the_source():
    connection = Connection(LARGE)
    connection.receive_data(b"word " * 60 + b"\n")
    found = connection.next_event()
    assert found.source == Source(b"word " * 60, True, 300)
    assert found.request.prompt is None
