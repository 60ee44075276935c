"""Requests over a real socket, from connect to final event, and their refusals."""

from __future__ import annotations

import json
import os
import random
import struct

import pytest

from uma_core.errors import ErrorCode, UmaError
from uma_core.metrics import catalog as metrics
from uma_core.session.events import HangUp, Submit
from uma_core.types import Priority


def test_a_request_streams_and_ends(server, texts):
    with server.connect() as client:
        client.send(id="a", prompt="Grüße")
        events = client.until_final("a")
    assert texts(events, "a") == "Grüße"
    assert events[-1]["reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 5
    assert "text" not in events[-1]


def test_a_request_that_does_not_stream(server):
    with server.connect() as client:
        client.send(id=1, prompt="abc", stream=False)
        (event,) = client.until_final(1)
    assert (event["event"], event["text"]) == ("eos", "abc")


def test_requests_of_one_connection_interleave(server, texts):
    server.compute.go.clear()
    with server.connect() as client:
        for id, prompt in ((1, "abcdefgh"), (2, "ABCDEFGH"), (3, "12345678")):
            client.send(id=id, prompt=prompt)
        server.eventually(lambda: len(server.compute.sessions) == 3)
        server.compute.go.set()
        server.compute.submit(HangUp(-1))
        events = client.until_final(1, 2, 3)
    assert [texts(events, id) for id in (1, 2, 3)] == ["abcdefgh", "ABCDEFGH", "12345678"]
    assert {event["id"] for event in events[:3]} == {1, 2, 3}, "each gets its first token in the first tick"


@pytest.mark.parametrize("is_in_call", [True, False])
def test_sending_beside_a_decode_call_shows(server, is_in_call):
    server.compute.is_in_call = is_in_call
    with server.connect() as client:
        client.send(id="a", prompt="four")
        client.until_final("a")
    assert server.registry.snapshot().value(metrics.OVERLAP_ACTIVE) == is_in_call


def test_many_clients_at_once(server, texts):
    clients = [server.connect() for _ in range(16)]
    for n, client in enumerate(clients):
        client.send(id=n, prompt=f"prompt {n} ", max_tokens=64)
    for n, client in enumerate(clients):
        with client:
            assert texts(client.until_final(n), n) == (f"prompt {n} " * 8)[:64]


def test_tokens_of_one_tick_are_one_write(serve, monkeypatch):
    server = serve()
    server.compute.go.clear()
    with server.connect() as client:
        for id in range(8):
            client.send(id=id, prompt="xyz")
        server.eventually(lambda: len(server.compute.sessions) == 8)
        (serving,) = server.app.clients.values()
        n_writes = []
        write = serving._write
        monkeypatch.setattr(serving, "_write", lambda: (n_writes.append(1), write())[1])
        server.compute.go.set()
        server.compute.submit(HangUp(-1))
        events = client.until_final(*range(8))
    assert len(events) == 8 * 4
    assert len(n_writes) <= 3


def test_requests_in_any_chunks(server, texts):
    rng = random.Random(5)
    for _ in range(20):
        requests = [json.dumps({"id": n, "prompt": "p" * rng.randrange(1, 40)}).encode() for n in range(3)]
        stream = b"".join(struct.pack("<I", len(payload)) + payload for payload in requests)
        with server.connect() as client:
            while stream:
                n = rng.randrange(1, 20)
                client.sock.sendall(stream[:n])
                stream = stream[n:]
            assert len([e for e in client.until_final(0, 1, 2) if e["event"] == "eos"]) == 3


def test_a_big_frame(server):
    prompt = "x" * (200 << 10)
    with server.connect() as client:
        client.send(id="big", prompt=prompt, max_tokens=3, stream=False)
        assert client.until_final("big")[0]["usage"]["prompt_tokens"] == len(prompt) + 1


def test_the_frame_above_the_cap_is_answered_before_its_body(server):
    with server.connect() as client:
        client.sock.sendall(struct.pack("<I", (32 << 20) + 1))
        event = client.event()
        assert (event["code"], event["detail"]["limit"]) == ("E_LIMIT_002", 32 << 20)
        assert client.rest() == b""


def test_whoever_still_sends_the_body_reads_why_it_is_refused(server):
    with server.connect() as client:
        client.sock.sendall(struct.pack("<I", 33 << 20) + b"x" * (4 << 20))
        assert client.event()["code"] == "E_LIMIT_002"


@pytest.mark.parametrize("size", [101, 5000])
def test_a_prompt_above_the_cap(serve, size):
    server = serve(limits={"max_prompt_bytes": 100})
    requests = (
        {"prompt": "x" * size},
        {"messages": [{"role": "user", "content": "x" * size}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * size}]}]},
        {"tokens": [1] * size},
    )
    with server.connect() as client:
        for request in requests:
            event = client.ask(id="a", **request)
            assert (event["code"], event["detail"]["limit"]) == ("E_LIMIT_001", 100)
        assert client.ask(id="b", prompt="ok")["event"] == "token"
        client.until_final("b")


def test_messages_go_through_the_template(server):
    with server.connect() as client:
        client.send(id=1, messages=[{"role": "s", "content": "be"}, {"role": "u", "content": "hi"}], stream=False)
        assert client.until_final(1)[0]["text"] == "[B]<s>be<u>hi<a>"
    (submit,) = [command for command in server.compute.seen if isinstance(command, Submit)]
    assert submit.message_ends == (8, 13)


def test_a_request_is_no_more_urgent_than_its_user_may_be(serve):
    server = serve(access={"lane_ceiling": {os.getuid(): "background"}})
    with server.connect() as client:
        client.send(id=1, prompt="a", priority="interactive")
        client.send(id=2, prompt="a")
        client.until_final(1, 2)
    requests = [command.request for command in server.compute.seen if isinstance(command, Submit)]
    assert [request.priority for request in requests] == [Priority.BACKGROUND, Priority.BACKGROUND]


# refusals


def test_the_compute_sides_refusal_is_the_only_event(server, overloaded):
    server.compute.refuse = overloaded
    with server.connect() as client:
        event = client.ask(id="a", prompt="x")
        assert (event["id"], event["code"], event["detail"]) == ("a", "E_LIMIT_003", {"retry_after_ms": 5})
        server.compute.refuse = None
        client.send(id="a", prompt="x")
        assert client.until_final("a")[-1]["event"] == "eos"


def test_the_gate_refuses_and_the_connection_lives(server):
    server.closed = UmaError(ErrorCode.DRAINING, retry_after_ms=1000)
    with server.connect() as client:
        assert client.ask(id=1, prompt="x")["code"] == "E_STATE_002"
        assert client.ask(type="health", id=2)["is_ready"] is True
        server.closed = None
        client.send(id=1, prompt="x")
        assert client.until_final(1)[-1]["event"] == "eos"


def test_no_model(server):
    server.model = None
    with server.connect() as client:
        assert client.ask(id=1, prompt="x")["code"] == "E_MODEL_001"


def test_too_many_prompts_wait(serve):
    server = serve(limits={"max_sessions": 1})
    started, release = server.text.block("slow" * 5000)
    with server.connect() as client:
        client.send(id="long", prompt="slow" * 5000, max_tokens=1)
        assert started.wait(20)
        for n in range(3):
            server.text.block(f"p{n}")
            client.send(id=n, prompt=f"p{n}")
        server.eventually(lambda: server.app.intake.n_jobs == 4)
        event = client.ask(id="more", prompt="x")
        assert (event["code"], event["detail"]["retry_after_ms"] > 0) == ("E_LIMIT_003", True)
        for gate in (release, *server.text.gates.values()):
            gate.set()
        client.until_final("long", 0, 1, 2)


def test_a_model_change_between_tokenising_and_acceptance(server):
    old = server.text
    server.compute.stale_for = old

    def swap():
        server.model = type(old)()

    started, release = old.block("hello")
    with server.connect() as client:
        client.send(id=1, prompt="hello", stream=False)
        assert started.wait(20)
        swap()
        assert server.app.intake.is_using(old)
        release.set()
        assert client.until_final(1)[0]["text"] == "hello"
    submits = [command for command in server.compute.seen if isinstance(command, Submit)]
    assert [submit.text is old for submit in submits] == [True, False]
    assert not server.app.intake.is_using(old)
