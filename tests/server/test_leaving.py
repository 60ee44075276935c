"""Cancelling, hanging up, and closing only one direction: which clients still get what."""

from __future__ import annotations

import socket
import threading

import pytest

from uma_core.server.io import client as io_client
from uma_core.session.events import Cancel, HangUp, Submit


def test_cancel_a_running_request(server):
    with server.connect() as client:
        client.send(id="a", prompt="abc", max_tokens=1 << 20)
        client.event()
        client.send(type="cancel", id="a")
        events = client.until_final("a")
    assert events[-1]["reason"] == "cancelled"
    assert [event for event in events if event["event"] == "reply"] == [
        {"found": True, "id": "a", "event": "reply", "type": "cancel"}
    ]


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


def test_cancel_an_answer_that_a_request_does_not_have(server):
    with server.connect() as client:
        client.send(id="a", prompt="abc", max_tokens=1 << 20)
        client.event()
        client.send(type="cancel", id="a", index=1)
        client.send(type="cancel", id="a", index=0)
        events = client.until_final("a")
    assert [event["found"] for event in events if event["event"] == "reply"] == [False, True]


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
    """After a half-close the daemon reads nothing more. It must still notice the hang-up while the request is
    queued.
    """
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


def test_a_half_closed_client_is_let_go_where_its_last_request_used_up_a_turn(server, monkeypatch):
    """The end of its input is then found in a later turn, after all answers were written."""
    monkeypatch.setattr(io_client, "MESSAGES_PER_TURN", 1)
    is_sent = threading.Event()
    with server.connect() as client:
        server.loop.call_soon(is_sent.wait)
        client.sock.sendall(b'{"type":"health"}\n' * 8)
        client.sock.shutdown(socket.SHUT_WR)
        is_sent.set()
        assert client.rest().count(b"\n") == 8
    server.eventually(lambda: not server.app.clients)


def test_end_of_stream_inside_a_frame(server):
    with server.connect() as client:
        client.sock.sendall(b"\x10\0\0\0{")
        client.sock.shutdown(socket.SHUT_WR)
        assert client.event()["name"] == "bad_frame"
        assert client.rest() == b""


def test_a_half_closed_client_gets_a_deferred_answer_without_an_id(server):
    with server.connect() as client:
        client.send(type="trace")
        client.sock.shutdown(socket.SHUT_WR)
        server.eventually(lambda: len(server.admin_calls) == 1)
        server.admin_calls[0][2]({"traceEvents": []})
        assert client.event()["type"] == "trace"
        assert client.rest() == b""
