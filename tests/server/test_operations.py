"""Operations other than generate: which are answered at once, which later, and to whom."""

from __future__ import annotations

import pytest

from uma_core.errors import ErrorCode, UmaError


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


def test_an_operation_without_an_answer_yet_ends_with_the_daemon(serve):
    server = serve()
    with server.connect() as client:
        client.send(type="trace", id="tr", seconds=60)
        client.send(type="drain", id=2)
        server.eventually(lambda: len(server.admin_calls) == 2)
        server.stop()
        ends = {event["id"]: (event["event"], event["name"]) for event in (client.event(), client.event())}
        assert ends == {"tr": ("error", "shutting_down"), 2: ("error", "shutting_down")}
        assert client.rest() == b""


def test_an_admin_answer_after_the_client_left(server):
    with server.connect() as client:
        client.send(type="drain", id=1)
        server.eventually(lambda: len(server.admin_calls) == 1)
    server.eventually(lambda: not server.app.clients)
    server.admin_calls[0][2]({"done": True})
    with server.connect() as client:
        assert client.ask(type="status")["event"] == "reply"


def test_admin_operations_are_for_the_owner(server, monkeypatch):
    monkeypatch.setattr("uma_core.server.operations.handlers.is_admin", lambda *args: False)
    with server.connect() as client:
        assert client.ask(type="drain", id=1)["code"] == "E_ACCESS_002"
    assert server.admin_calls == []
