"""The blocking client: which events belong to a request, and what breaks the connection."""

from __future__ import annotations

import functools
import os
import socket
import threading
from pathlib import Path

import pytest

from uma_core.types import Peer
from uma_ctl.client import Client, fields_of
from uma_ctl.errors import BrokenProtocol, CannotConnect, CtlError, NoAnswer, ServerError


def test_a_call_returns_its_own_reply_and_passes_over_the_rest(serve, socket_path):
    def script(peer, message):
        peer.token("other", "x")
        peer.send(id="other", event="reply", type="status")
        peer.reply(message, state="ready")

    serve(script)
    with Client(socket_path) as client:
        assert fields_of(client.call("status")) == {"state": "ready"}


def test_a_refused_call_raises_with_code_and_detail(serve, socket_path):
    serve(lambda peer, m: peer.refuse(m["id"], "E_STATE_003", "reload_busy", "busy", hint=1))
    with Client(socket_path) as client, pytest.raises(ServerError) as caught:
        client.call("reload")
    assert caught.value.code == "E_STATE_003"
    assert caught.value.to_dict() == {
        "code": "E_STATE_003",
        "name": "reload_busy",
        "message": "busy",
        "detail": {"hint": 1},
    }


def test_absent_fields_are_not_sent(serve, socket_path):
    server = serve(lambda peer, message: peer.reply(message))
    with Client(socket_path) as client:
        client.call("drain", timeout_ms=None, then="stay")
        client.call("drain")
    assert server.received == [{"type": "drain", "id": "r1", "then": "stay"}, {"type": "drain", "id": "r2"}]


def test_two_requests_on_one_connection_are_told_apart(serve, socket_path):
    def script(peer, message):
        if message["id"] == "b":
            for id in ("a", "b", "a"):
                peer.token(id, id)
            peer.eos("b")
            peer.eos("a")

    serve(script)
    with Client(socket_path) as client:
        client.send({"id": "a", "prompt": "x"})
        assert [event["event"] for event in client.generate({"id": "b", "prompt": "y"})] == ["token", "eos"]


def test_the_reply_to_a_cancel_does_not_end_the_stream(serve, socket_path):
    def script(peer, message):
        if message.get("type") == "cancel":
            peer.reply(message, found=True)
            peer.eos(message["id"], "cancelled")
        else:
            peer.token(message["id"], "x")

    serve(script)
    with Client(socket_path) as client:
        events = client.generate({"id": "a", "prompt": "x"})
        assert next(events)["event"] == "token"
        client.cancel("a")
        assert [event["reason"] for event in events] == ["cancelled"]


def test_what_a_refusing_server_said_before_it_hung_up_is_heard(serve, socket_path):
    def script(peer, message):
        peer.refuse(None, "E_LIMIT_002", "frame_too_large")
        peer.hang_up()

    serve(script)
    with Client(socket_path) as client:
        client.send({"id": "a"})
        with pytest.raises(ServerError, match="no"):
            client.call("status")


@pytest.mark.parametrize("path", ["/nowhere/uma.sock", "/dev/null", "x" * 300, "a\0b", ""])
def test_paths_that_cannot_be_connected_to(path):
    with pytest.raises(CannotConnect):
        Client(path)


def test_a_stranger_gets_nothing(serve, socket_path, monkeypatch):
    server = serve(lambda peer, message: peer.reply(message))
    monkeypatch.delenv("UMA_TRUST_UIDS", raising=False)
    monkeypatch.setattr("uma_core.endpoint.peer_of", lambda sock: Peer(4242, 4242, 1))
    with pytest.raises(
        CannotConnect, match=r"uid 4242 listens .* nothing was sent; UMA_TRUST_UIDS=4242 trusts that user"
    ):
        Client(socket_path)
    assert not server.received
    monkeypatch.setenv("UMA_TRUST_UIDS", "4242")
    with Client(socket_path) as client:
        assert client.call("status")["type"] == "status"
    monkeypatch.setenv("UMA_TRUST_UIDS", "nobody")
    with pytest.raises(CannotConnect, match="UMA_TRUST_UIDS must be user ids"):
        Client(socket_path)


def test_without_a_path_the_places_are_looked_at_in_order(serve, socket_path, monkeypatch):
    serve(lambda peer, message: peer.reply(message))
    folder = os.path.dirname(socket_path)
    places: list[str] = []
    monkeypatch.setattr("uma_core.endpoint.places", lambda environ: tuple(places))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{folder}/dead")
    for first in ("absent", "dead"):
        places[:] = [f"{folder}/{first}", socket_path]
        with Client() as client:
            assert client.path == socket_path
    for first, second in (("absent", "dead"), ("dead", "absent")):
        places[:] = [f"{folder}/{first}", f"{folder}/{second}"]
        with pytest.raises(CannotConnect) as refusal:
            Client()
        assert f"{folder}/absent: no such socket" in str(refusal.value)
        assert f"{folder}/dead: nobody listens there" in str(refusal.value)


def test_a_stranger_at_the_first_place_is_not_passed_over(serve, socket_path, monkeypatch):
    serve(lambda peer, message: peer.reply(message))
    monkeypatch.setattr("uma_core.endpoint.places", lambda environ: (socket_path, "/nowhere"))
    monkeypatch.setattr("uma_core.endpoint.peer_of", lambda sock: Peer(4242, 4242, 1))
    with pytest.raises(CannotConnect, match="uid 4242 listens"):
        Client()


def test_a_frame_above_the_cap_is_a_broken_protocol(serve, socket_path):
    serve(lambda peer, message: peer.raw(b"\xff\xff\xff\xff"))
    with Client(socket_path) as client, pytest.raises(BrokenProtocol):
        client.call("status")


def test_a_full_backlog_is_waited_for(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("b") / "uma.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(1)
        waiting = []
        with pytest.raises(CannotConnect):
            while len(waiting) < 100:
                waiting.append(Client(path, 0.05))
        accepted = []
        thread = threading.Timer(0.1, lambda: accepted.extend(listening.accept() for _ in waiting))
        thread.start()
        Client(path, 20).close()
        thread.join()
        for client in waiting:
            client.close()
        for sock, _ in accepted:
            sock.close()


def test_a_path_object_is_a_path(serve, socket_path):
    serve(lambda peer, message: peer.reply(message, state="ready"))
    with Client(Path(socket_path)) as client:
        assert fields_of(client.call("status")) == {"state": "ready"} and client.path == socket_path


def test_without_time_there_is_no_answer(serve, socket_path):
    serve(lambda peer, message: None)
    with Client(socket_path, 0) as client, pytest.raises(NoAnswer):
        client.call("status")


def test_after_close_everything_is_a_broken_connection(serve, socket_path):
    serve(lambda peer, message: None)
    client = Client(socket_path)
    client.close()
    for use in (lambda: client.set_timeout(1), lambda: client.call("status"), client.next_event):
        with pytest.raises(BrokenProtocol):
            use()


@pytest.mark.parametrize("text", ["\ud83d", "a\udc80\ud800"])
def test_half_a_character_is_an_error_of_ours(serve, socket_path, text):
    serve(lambda peer, message: peer.reply(message))
    with Client(socket_path) as client, pytest.raises(CtlError, match="half of a surrogate pair"):
        client.call("tokenize", content=text)


def test_a_request_too_deep_to_be_written_is_an_error_of_ours(serve, socket_path):
    deep = functools.reduce(lambda inner, _: [inner], range(100_000), [])
    serve(lambda peer, message: peer.reply(message))
    with Client(socket_path) as client, pytest.raises(CtlError, match="nested too deeply"):
        client.call("tokenize", content=deep)
