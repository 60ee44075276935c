"""Who may connect, how many connections there may be, when one is idle, and how all of them end."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
from collections import Counter

import pytest

import uma_core.metrics.catalog as m
from uma_core.clock import ManualClock
from uma_core.server.io.app import RESERVE_PLACES, IoApp
from uma_core.server.io.client import MESSAGES_PER_TURN
from uma_core.session.events import HangUp


def test_a_peer_that_may_not_connect(server, monkeypatch):
    monkeypatch.setattr("uma_core.server.io.app.may_connect", lambda *args: False)
    with server.connect() as client:
        event = client.ask(type="status", id=1)
        assert (event["id"], event["code"]) == (1, "E_ACCESS_001")
        assert client.rest() == b""
    with server.connect() as client:
        client.sock.sendall(b"Hello\n")
        assert client.rest().startswith(b"[E_ACCESS_001 forbidden")


def test_peers_that_may_not_connect_take_nobody_s_place(serve, monkeypatch):
    """They were counted: a user whom the lists exclude could keep out everybody whom they admit."""
    monkeypatch.setattr("uma_core.server.io.app.may_connect", lambda *args: is_permitted)
    monkeypatch.setattr("uma_core.server.io.app.is_admin", lambda *args: False)
    server, is_permitted = serve(ipc={"max_connections": 1}), False
    with server.connect(), server.connect(), server.connect():
        server.eventually(lambda: len(server.app.clients) == 3)
        is_permitted = True
        with server.connect() as client:
            assert client.ask(type="health")["event"] == "reply"


def test_the_connection_cap(serve):
    server = serve(ipc={"max_connections": 2})
    with server.connect() as first, server.connect() as second:
        for client in (first, second):
            assert client.ask(type="health")["event"] == "reply"
        with server.connect() as third:
            assert third.ask(id="a", prompt="x")["code"] == "E_LIMIT_004"
            assert third.rest() == b""
        server.eventually(lambda: len(server.app.clients) == 2)
        assert first.ask(type="health")["event"] == "reply"
    server.eventually(lambda: not server.app.clients)
    with server.connect() as client:
        assert client.ask(type="health")["event"] == "reply"


def test_above_the_cap_administrators_may_still_ask_for_operations(serve):
    server = serve(ipc={"max_connections": 1})
    with server.connect() as only, contextlib.ExitStack() as stack:
        assert only.ask(type="health")["event"] == "reply"
        reserve = [stack.enter_context(server.connect()) for _ in range(RESERVE_PLACES)]
        for client in reserve:
            assert client.ask(type="status", id=1)["event"] == "reply"
            assert client.ask(type="sessions", id=2)["event"] == "reply"
        with server.connect() as one_more:
            assert one_more.ask(type="status", id=1)["code"] == "E_LIMIT_004"
        assert reserve[0].ask(id="a", prompt="x")["code"] == "E_LIMIT_004"
        assert reserve[0].rest() == b""
        server.eventually(lambda: len(server.app.clients) == RESERVE_PLACES)
        with server.connect() as again:
            assert again.ask(type="status", id=1)["event"] == "reply"


def test_a_place_for_administrators_is_not_kept_without_asking(serve, monkeypatch):
    monkeypatch.setattr("uma_core.server.io.client.REFUSAL_NS", 30_000_000)
    server = serve(ipc={"max_connections": 1})
    with server.connect() as only, server.connect() as silent:
        assert silent.event()["code"] == "E_LIMIT_005"
        assert only.ask(type="health")["event"] == "reply"


def test_above_the_cap_others_than_administrators_are_refused(serve, monkeypatch):
    monkeypatch.setattr("uma_core.server.io.app.is_admin", lambda *args: False)
    server = serve(ipc={"max_connections": 1})
    with server.connect(), server.connect() as second:
        assert second.ask(type="status", id=1)["code"] == "E_LIMIT_004"
        assert second.rest() == b""


def test_a_crowd_above_the_cap_is_shed_at_once(serve, monkeypatch):
    monkeypatch.setattr("uma_core.server.io.app.REFUSING_MAX", 1)
    monkeypatch.setattr("uma_core.server.io.app.RESERVE_PLACES", 0)
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


@pytest.mark.parametrize("data", [b"\0\x10\0\0", b"Hello", b"\n"])
def test_trickled_bytes_do_not_keep_a_connection(serve, data):
    """The bytes belong to a frame or a line that never ends, or to empty lines."""
    server = serve(ipc={"idle_timeout_ms": 60.0})
    with server.connect() as client:
        client.sock.sendall(data)
        filler = b"\n" if data == b"\n" else b" "
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(500):  # less than the whole frame
                client.sock.sendall(filler)
                time.sleep(0.02)
        server.eventually(lambda: not server.app.clients)


def test_a_message_that_takes_its_time_is_not_idle(serve):
    """It began late, and has the same time again to be complete."""
    server = serve(ipc={"idle_timeout_ms": 1000.0})
    server.loop.clock = clock = ManualClock()

    def pass_ms(n: int) -> None:
        """Advance the clock, and wait until the server has looked at its timers."""
        clock.advance(n * 1_000_000)
        n_turns = server.loop.n_turns
        server.loop.wake()
        server.eventually(lambda: server.loop.n_turns > n_turns + 1 or server.loop.wake())

    with server.connect() as client:
        payload = json.dumps({"type": "health", "id": 1}).encode()
        frame = struct.pack("<I", len(payload)) + payload
        server.eventually(lambda: len(server.app.clients) == 1)
        (peer,) = server.app.clients.values()
        pass_ms(700)
        client.sock.sendall(frame[:10])
        server.eventually(lambda: peer.connection.n_buffered == 10)
        pass_ms(600)
        assert peer.is_open
        client.sock.sendall(frame[10:])
        assert client.event()["event"] == "reply"
        client.sock.sendall(frame[:10])
        server.eventually(lambda: peer.connection.n_buffered == 10)
        pass_ms(1100)
        assert client.event()["code"] == "E_LIMIT_005"


@pytest.mark.parametrize(
    ("data", "beginning"),
    [(b"", b"{"), (b"Hi", b"[E_LIMIT_005"), (b"{}", b"{"), (b"Hello", b"[E_LIMIT_005"), (b"{}\n", b"{")],
)
def test_what_was_typed_gets_its_time_out_as_text(serve, data, beginning):
    """A client that has sent nothing gets a frame."""
    server = serve(ipc={"idle_timeout_ms": 30.0})
    with server.connect() as client:
        client.sock.sendall(data)
        answer = client.rest()
        assert (answer if data else answer[4:]).startswith(beginning)
        assert b"E_LIMIT_005" in answer
        assert answer.endswith(b"\n") or not data


def test_a_busy_connection_is_not_idle(serve):
    server = serve(ipc={"idle_timeout_ms": 30.0})
    server.compute.go.clear()
    with server.connect() as client:
        client.send(id=1, prompt="a")
        server.eventually(lambda: len(server.compute.sessions) == 1)
        server.eventually(lambda: server.loop.n_turns > 20)  # the timers have been looked at
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
        time.sleep(0.3)  # real time must pass: the test observes that no work is done
        assert server.on_loop(lambda: server.loop.n_turns) - before <= 2


def test_a_flood_of_requests_leaves_others_their_turn(server, monkeypatch):
    """Before, a client's requests that had come were all answered in one turn of the loop: no stream had a token
    meanwhile.
    """
    taken = Counter()
    on_message = IoApp.on_message

    def count(app, client, message):
        taken[app.loop.n_turns] += 1
        on_message(app, client, message)

    monkeypatch.setattr(IoApp, "on_message", count)
    payload = json.dumps({"type": "health"}).encode()
    with server.connect() as client:
        frames = (struct.pack("<I", len(payload)) + payload) * 3000
        sender = threading.Thread(target=client.sock.sendall, args=(frames,))
        sender.start()
        for _ in range(3000):
            assert client.event()["event"] == "reply"
        sender.join()
    assert sum(taken.values()) == 3000
    assert max(taken.values()) <= 3 * MESSAGES_PER_TURN  # by a call, by what was read, and by what was written


def test_a_turn_of_slow_requests_is_short(server, monkeypatch):
    """Before, 32 of a client's requests were answered in one turn, however long each took."""
    taken, clock = Counter(), ManualClock(time.monotonic_ns())

    def slow(app, client, message):
        taken[app.loop.n_turns] += 1
        clock.advance(2_000_000)
        app.reply(client, message, {})

    monkeypatch.setattr(IoApp, "on_message", slow)
    monkeypatch.setattr(server.loop, "clock", clock)
    payload = json.dumps({"type": "health"}).encode()
    with server.connect() as client:
        client.sock.sendall((struct.pack("<I", len(payload)) + payload) * 100)
        for _ in range(100):
            assert client.event()["event"] == "reply"
    assert max(taken.values()) <= 3
