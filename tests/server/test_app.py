"""Requests over a real socket, from connect to final event."""

from __future__ import annotations

import json
import random
import socket
import struct

import pytest

import uma_core.metrics as m
from uma_core.errors import ErrorCode, UmaError
from uma_core.session.events import Cancel, HangUp, Submit
from uma_core.types import Lane


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
        client.sock.sendall(struct.pack("<I", (1 << 20) + 1))
        event = client.event()
        assert (event["code"], event["detail"]["limit"]) == ("E_LIMIT_002", 1 << 20)
        assert client.rest() == b""


def test_whoever_still_sends_the_body_reads_why_it_is_refused(server):
    with server.connect() as client:
        client.sock.sendall(struct.pack("<I", 4 << 20) + b"x" * (4 << 20))
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


def test_configuration_fills_in_what_the_request_leaves_open(serve):
    import os

    server = serve(limits={"request_timeout_ms": 1500.0, "overflow": "shift"}, access={"lane_ceiling": {os.getuid(): "background"}})
    with server.connect() as client:
        client.send(id=1, prompt="a", priority="interactive")
        client.send(id=2, prompt="a", timeout_ms=10, overflow="error")
        client.until_final(1, 2)
    first, second = (c.request for c in server.compute.seen if isinstance(c, Submit))
    assert (first.lane, first.timeout_ns, first.overflow) == (Lane.BACKGROUND, 1_500_000_000, "shift")
    assert (second.lane, second.timeout_ns, second.overflow) == (Lane.BACKGROUND, 10_000_000, "error")


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


# cancel and hang-up


def test_cancel_a_running_request(server):
    with server.connect() as client:
        client.send(id="a", prompt="abc", max_tokens=1 << 20)
        client.event()
        client.send(type="cancel", id="a")
        events = client.until_final("a")
    assert events[-1]["reason"] == "cancelled"
    assert [event for event in events if event["event"] == "reply"] == [{"found": True, "id": "a", "event": "reply", "type": "cancel"}]


def test_cancel_a_request_that_is_still_being_read(server):
    started, release = server.text.block("paste")
    with server.connect() as client:
        client.send(id="a", prompt="paste")
        assert started.wait(20)
        assert client.ask(type="cancel", id="a")["found"] is True
        release.set()
        event = client.event()
    assert (event["event"], event["reason"], event["usage"]["completion_tokens"]) == ("eos", "cancelled", 0)
    assert not [command for command in server.compute.seen if isinstance(command, (Submit, Cancel))]


def test_cancel_something_unknown(server):
    with server.connect() as client:
        assert client.ask(type="cancel", id="x") == {"found": False, "id": "x", "event": "reply", "type": "cancel"}


def test_cancel_across_connections_of_one_user(server):
    with server.connect() as client, server.connect() as other:
        client.send(id="a", prompt="abc", max_tokens=1 << 20)
        client.event()
        conn = server.on_loop(lambda: min(server.app.clients))
        assert other.ask(type="cancel", id="b", conn=conn)["found"] is False
        assert other.ask(type="cancel", id="a", conn=99)["found"] is False
        assert other.ask(type="cancel", id="a", conn=conn)["found"] is True
        assert client.until_final("a")[-1]["reason"] == "cancelled"


@pytest.mark.parametrize("linger", [False, True])
def test_hanging_up_cancels(server, linger):
    client = server.connect()
    client.send(id="a", prompt="abc", max_tokens=1 << 20)
    client.send(id="b", prompt="abc", max_tokens=1 << 20)
    client.event()
    if linger:  # unread bytes in both directions
        client.sock.sendall(b"\x10\0\0\0")
    client.sock.close()
    server.eventually(lambda: not server.compute.sessions and not server.app.clients)
    assert any(isinstance(command, HangUp) for command in server.compute.seen)


def test_hanging_up_while_the_prompt_is_being_read(server):
    started, release = server.text.block("paste")
    client = server.connect()
    client.send(id="a", prompt="paste")
    assert started.wait(20)
    client.sock.close()
    server.eventually(lambda: not server.app.clients)
    release.set()
    server.eventually(lambda: server.app.intake.n_jobs == 0)
    assert not [command for command in server.compute.seen if isinstance(command, Submit)]


def test_hanging_up_without_tokens_flowing_is_noticed(server):
    """After a half-close nothing is read any more; the hang-up must still be seen while the request is queued."""
    server.compute.go.clear()
    client = server.connect()
    client.send(id="a", prompt="abc")
    client.sock.shutdown(socket.SHUT_WR)
    server.eventually(lambda: len(server.compute.sessions) == 1)
    assert server.on_loop(lambda: len(server.app.clients)) == 1
    client.sock.close()
    server.eventually(lambda: not server.app.clients and not server.compute.sessions)
    server.compute.go.set()


def test_half_close_still_gets_the_answers(server, texts):
    with server.connect() as client:
        client.send(id=1, prompt="abc", max_tokens=30)
        client.send(id=2, prompt="def", max_tokens=60)
        client.sock.shutdown(socket.SHUT_WR)
        events = client.until_final(1, 2)
        assert (texts(events, 1), texts(events, 2)) == ("abc" * 10, "def" * 20)
        assert client.rest() == b""
    server.eventually(lambda: not server.app.clients)


def test_end_of_stream_inside_a_frame(server):
    with server.connect() as client:
        client.sock.sendall(b"\x10\0\0\0{")
        client.sock.shutdown(socket.SHUT_WR)
        assert client.event()["name"] == "bad_frame"
        assert client.rest() == b""


# other operations


def test_status_metrics_health_sessions_help(server):
    with server.connect() as client:
        assert client.ask(type="status", id=1) == {"state": "ready", "id": 1, "event": "reply", "type": "status"}
        assert client.ask(type="metrics", id=2)["metrics"] == {"answer": 42}
        assert client.ask(type="metrics", id=2, format="prometheus")["text"] == "uma_answer 42\n"
        assert client.ask(type="health")["protocol"] == 1
        assert client.ask(type="sessions")["sessions"] == []
        names = {op["type"] for op in client.ask(type="help")["ops"]}
    assert {"generate", "cancel", "status", "drain", "undrain", "reload", "cache", "trace"} <= names


def test_status_answers_while_a_prompt_is_being_read_and_the_engine_is_busy(server):
    server.compute.go.clear()
    started, release = server.text.block("paste")
    with server.connect() as client:
        client.send(id="a", prompt="paste")
        assert started.wait(20)
        assert client.ask(type="status", id="s")["state"] == "ready"
        release.set()
        server.compute.go.set()
        client.until_final("a")


def test_a_handlers_bug_is_a_coded_error(server):
    server.app.services.status = lambda: 1 / 0
    server.app.services.health = lambda: {"x": object()}
    with server.connect() as client:
        assert client.ask(type="status", id=1)["code"] == "E_INTERNAL_003"
        assert client.ask(type="health", id=2)["code"] == "E_INTERNAL_003"
        assert client.ask(type="sessions", id=3)["event"] == "reply"


@pytest.mark.parametrize("op", ["drain", "undrain", "reload", "cache", "trace"])
def test_admin_operations_answer_later(server, op):
    with server.connect() as client:
        client.send(type=op, id="later")
        server.eventually(lambda: len(server.admin_calls) == 1)
        assert client.ask(type="status", id="now")["id"] == "now"
        name, _, answer = server.admin_calls[0]
        assert name == op
        answer({"done": True})
        assert client.event() == {"done": True, "id": "later", "event": "reply", "type": op}


def test_an_admin_operation_fails(server):
    with server.connect() as client:
        client.send(type="reload", id=1)
        server.eventually(lambda: len(server.admin_calls) == 1)
        server.admin_calls[0][2](UmaError(ErrorCode.RELOAD_BUSY))
        assert client.event()["code"] == "E_STATE_003"


def test_an_admin_answer_after_the_client_left(server):
    with server.connect() as client:
        client.send(type="drain", id=1)
        server.eventually(lambda: len(server.admin_calls) == 1)
    server.eventually(lambda: not server.app.clients)
    server.admin_calls[0][2]({"done": True})
    with server.connect() as client:
        assert client.ask(type="status")["event"] == "reply"


def test_admin_operations_are_for_the_owner(server, monkeypatch):
    monkeypatch.setattr("uma_core.server.handlers.is_admin", lambda *args: False)
    with server.connect() as client:
        assert client.ask(type="drain", id=1)["code"] == "E_ACCESS_002"
    assert server.admin_calls == []


def test_a_peer_that_may_not_connect(server, monkeypatch):
    monkeypatch.setattr("uma_core.server.app.may_connect", lambda *args: False)
    with server.connect() as client:
        event = client.ask(type="status", id=1)
        assert (event["id"], event["code"]) == (1, "E_ACCESS_001")
        assert client.rest() == b""
    with server.connect() as client:
        client.sock.sendall(b"Hello\n")
        assert client.rest().startswith(b"[E_ACCESS_001 forbidden")


def test_the_connection_cap(serve):
    server = serve(ipc={"max_connections": 2})
    with server.connect() as first, server.connect() as second:
        for client in (first, second):
            assert client.ask(type="health")["event"] == "reply"
        with server.connect() as third:
            assert third.ask(id="a", prompt="x")["code"] == "E_LIMIT_004"
            assert third.rest() == b""
        assert first.ask(type="health")["event"] == "reply"
    server.eventually(lambda: not server.app.clients)
    with server.connect() as client:
        assert client.ask(type="health")["event"] == "reply"


def test_a_crowd_above_the_cap_is_shed_at_once(serve, monkeypatch):
    monkeypatch.setattr("uma_core.server.app.REFUSING_MAX", 1)
    server = serve(ipc={"max_connections": 1})
    with server.connect(), server.connect(), server.connect() as shed:
        assert shed.event()["code"] == "E_LIMIT_004"
        assert shed.rest() == b""


def test_what_is_counted(server):
    with server.connect() as client:
        client.send(id=1, prompt="abc")
        client.until_final(1)
        client.ask(id=2, prompt=5)
        assert server.value(m.CONNECTIONS) == 1
    server.eventually(lambda: not server.app.clients)
    assert server.value(m.CONNECTIONS) == 0
    assert server.value(m.CONNECTIONS_TOTAL) == 1
    assert server.value(m.ERRORS, code="E_PROTO_002") == 1
    assert server.value(m.RX_BYTES) > 0
    assert server.value(m.TX_BYTES) > 0
    assert server.value(m.TX_BUFFERED) == 0


def test_an_idle_connection_is_told_and_closed(serve):
    server = serve(ipc={"idle_timeout_ms": 30.0})
    with server.connect() as client:
        assert client.event()["code"] == "E_LIMIT_005"
        assert client.rest() == b""


def test_a_busy_connection_is_not_idle(serve):
    server = serve(ipc={"idle_timeout_ms": 30.0})
    server.compute.go.clear()
    with server.connect() as client:
        client.send(id=1, prompt="a")
        server.eventually(lambda: len(server.compute.sessions) == 1)
        server.eventually(lambda: server.loop.n_turns > 20)  # timers have come round
        server.compute.go.set()
        server.compute.submit(HangUp(-1))
        assert client.until_final(1)[-1]["event"] == "eos"


def test_stopping_delivers_the_last_events(serve, texts):
    server = serve()
    client = server.connect()
    client.send(id=1, prompt="abc", max_tokens=1 << 20)
    client.event()
    server.stop()
    with client:
        events = client.until_final(1)
        assert events[-1]["reason"] == "draining"
        assert client.rest() == b""


def test_stopping_ends_what_the_compute_side_never_answered(serve, monkeypatch):
    server = serve()
    server.compute.go.clear()
    started, release = server.text.block("late")
    with server.connect() as client:
        client.send(id="stuck", prompt="abc")
        server.eventually(lambda: len(server.compute.sessions) == 1)
        monkeypatch.setattr(server.compute, "_end", lambda *args: None)  # the engine hangs
        client.send(id="late", prompt="late")
        assert started.wait(20)
        server.loop.stop()
        server.compute.join(20)
        release.set()
        late, stuck = sorted(client.until_final("stuck", "late"), key=lambda event: event["id"])
        assert (stuck["reason"], stuck["error"]["code"]) == ("error", "E_STATE_001")
        assert (late["event"], late["code"]) == ("error", "E_STATE_001")
        assert client.rest() == b""


def test_a_half_closed_client_gets_a_deferred_answer_without_an_id(server):
    with server.connect() as client:
        client.send(type="trace")
        client.sock.shutdown(socket.SHUT_WR)
        server.eventually(lambda: len(server.admin_calls) == 1)
        server.admin_calls[0][2]({"traceEvents": []})
        assert client.event()["type"] == "trace"
        assert client.rest() == b""


def test_a_quiet_server_sleeps(server):
    with server.connect() as client:
        client.send(id=1, prompt="abc")
        client.until_final(1)
        before = server.on_loop(lambda: server.loop.n_turns)
        threading_wait(0.3)
        assert server.on_loop(lambda: server.loop.n_turns) - before <= 2


def threading_wait(seconds: float) -> None:
    """Real time must pass here: the absence of work is what is observed."""
    import time

    time.sleep(seconds)
