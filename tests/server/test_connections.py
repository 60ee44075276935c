"""Who may connect and how many, when a connection is idle, and how all of them end."""

from __future__ import annotations

import time

import uma_core.metrics as m
from uma_core.session.events import HangUp


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


def test_a_quiet_server_sleeps(server):
    with server.connect() as client:
        client.send(id=1, prompt="abc")
        client.until_final(1)
        before = server.on_loop(lambda: server.loop.n_turns)
        time.sleep(0.3)  # the absence of work is what is observed
        assert server.on_loop(lambda: server.loop.n_turns) - before <= 2
