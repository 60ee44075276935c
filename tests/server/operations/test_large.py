"""Large requests on their way through the I/O side: they keep their order, and other requests do not wait for them."""

from __future__ import annotations

import json
import threading

import pytest

from uma_core.server.operations.large import LARGE_BYTES, Local

WAIT_S = 20
LONG = "abcdefgh" * 4000  # more than LARGE_BYTES


class Slow(Local):
    """Reads on command."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()

    def digest(self, payload):
        self.begun.set()
        assert self.go.wait(WAIT_S)
        return super().digest(payload)

    def close(self) -> None:
        self.go.set()


@pytest.fixture
def slow(serve):
    server = serve(limits={"max_prompt_bytes": 1 << 17})
    server.app.reader = server.app.intake._reader = Slow()
    return server


def test_a_large_prompt_is_answered_like_any(server, texts):
    with server.connect() as client:
        client.send(id="a", prompt=LONG, max_tokens=8)
        assert texts(client.until_final("a"), "a") == "abcdefgh"
        client.send(id="b", messages=[{"role": "user", "content": LONG}], max_tokens=8)
        assert texts(client.until_final("b"), "b") == "[B]<user"
        client.send(id="c", tokens=[1, *b"xyz" * LARGE_BYTES], max_tokens=3)
        assert texts(client.until_final("c"), "c") == "xyz"
        client.send(id="d", prompt="ab", max_tokens=2, x_note={"k": LONG})
        assert texts(client.until_final("d"), "d") == "ab"


def test_others_are_served_while_a_large_request_is_decoded(slow, texts):
    reader = slow.app.reader
    with slow.connect() as first, slow.connect() as second:
        first.send(id="a", prompt=LONG, max_tokens=8)
        assert reader.begun.wait(WAIT_S)
        second.send(id="b", prompt="quick", max_tokens=5)
        assert texts(second.until_final("b"), "b") == "quick"
        assert second.ask(type="health", id=1)["event"] == "reply"
        reader.go.set()
        assert texts(first.until_final("a"), "a") == "abcdefgh"


def test_what_follows_on_its_connection_comes_after_it(slow):
    """A cancel finds the request that was sent before it."""
    with slow.connect() as client:
        client.send(id="a", prompt=LONG, max_tokens=1 << 20)
        client.send(id="a", type="cancel")
        assert slow.app.reader.begun.wait(WAIT_S)
        slow.app.reader.go.set()
        events = [client.event() for _ in range(2)]
        while not {"eos", "reply"} <= {event["event"] for event in events}:
            events.append(client.event())
        assert next(event for event in events if event["event"] == "reply")["found"]
        assert next(event for event in events if event["event"] == "eos")["reason"] == "cancelled"


def test_a_client_that_leaves_meanwhile_leaves_nothing(slow):
    with slow.connect() as client:
        client.send(id="a", prompt=LONG)
        assert slow.app.reader.begun.wait(WAIT_S)
    slow.eventually(lambda: not slow.app.clients)
    slow.app.reader.go.set()
    slow.eventually(lambda: not slow.app.intake.n_jobs)
    assert not slow.compute.sessions
    assert not len(slow.app.ledger)


def test_a_half_closed_client_gets_its_answer(slow, texts):
    with slow.connect() as client:
        client.send(id="a", prompt=LONG, max_tokens=8)
        client.sock.shutdown(1)
        assert slow.app.reader.begun.wait(WAIT_S)
        slow.app.reader.go.set()
        assert texts(client.until_final("a"), "a") == "abcdefgh"
        assert client.rest() == b""


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": LONG, "max_tokn": 1}, "bad_request"),
        ({"type": "nonsense", "x_filler": LONG}, "unknown_type"),
        ({"prompt": "x" * 200_000}, "prompt_too_large"),
    ],
)
def test_a_large_request_is_refused_under_its_id(slow, fields, code):
    slow.app.reader.go.set()
    with slow.connect() as client:
        event = client.ask(id=9, **fields)
        assert (event["id"], event["event"], event["name"]) == (9, "error", code)


def test_operations_on_text_of_any_size(server):
    with server.connect() as client:
        reply = client.ask(type="count", id=1, prompt=LONG)
        assert reply["n_tokens"] == len(LONG) + 1
        assert client.ask(type="health", id=2, x_filler=LONG)["event"] == "reply"


def test_the_end_of_the_daemon_gives_large_requests_up(slow):
    with slow.connect() as client:
        client.send(id="a", prompt=LONG)
        assert slow.app.reader.begun.wait(WAIT_S)
        slow.stop()
        assert b"E_STATE_001" in client.rest()


def test_a_line_of_json_and_a_long_prompt_line(server):
    with server.connect() as client:
        client.sock.sendall(json.dumps({"id": 1, "prompt": LONG, "max_tokens": 4}).encode() + b"\n")
        events = []
        while not events or events[-1]["event"] != "eos":
            events.append(json.loads(client.line()))
        assert "".join(event["text"] for event in events if event["event"] == "token") == "abcd"
    with server.connect() as client:
        client.sock.sendall(LONG.encode() + b"\n")
        assert client.exactly(8) == b"abcdefgh"
