"""The load client against scripted servers: both protocols, gates, errors, time-outs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perf.driver import Driver, frames_endpoint, sse_endpoint
from perf.load import Ask, Phase
from tests.perf.fake_server import frame, http_server, uds_server, uma_script

PAIR = (Ask("a", 10, 3), Ask("b", 20, 2, priority="background"))


def test_frames_streams_are_complete_and_requests_as_specified(socket_path: Path) -> None:
    with uds_server(socket_path) as server:
        logs = Driver(frames_endpoint(str(socket_path)), Phase("p", PAIR), "seed").run()
    assert [log.is_complete for log in logs] == [True, True]
    assert [len(log.t_tokens) for log in logs] == [3, 2]
    by_id = {r["id"]: r for r in server.requests}
    assert len(by_id["a"]["prompt"]) == 10 and len(by_id["b"]["prompt"]) == 20
    assert "priority" not in by_id["a"] and by_id["b"]["priority"] == "background"
    assert by_id["a"] | {"prompt": ""} == {
        "id": "a",
        "prompt": "",
        "max_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": False,
    }


def test_sse_streams_are_complete_and_no_cache_is_asked_for() -> None:
    with http_server() as server:
        logs = Driver(sse_endpoint("127.0.0.1", server.port), Phase("p", PAIR), "seed").run()
    assert [(log.is_complete, len(log.t_tokens), log.n_reported) for log in logs] == [(True, 3, 3), (True, 2, 2)]
    assert all(r["cache_prompt"] is False and r["temperature"] == 0 and r["ignore_eos"] for r in server.requests)


def test_stamps_are_ordered_and_after_sending(socket_path: Path) -> None:
    with uds_server(socket_path):
        driver = Driver(frames_endpoint(str(socket_path)), Phase("p", (Ask("a", 5, 50),)), "seed")
        (log,) = driver.run()
    assert driver.t_start <= log.t_sent <= log.t_tokens[0]
    assert list(log.t_tokens) == sorted(log.t_tokens)
    assert log.t_done >= log.t_tokens[-1]


def test_gate_done_makes_a_chain_on_one_connection(socket_path: Path) -> None:
    steps = (
        Ask("s0", 4, 2, app="agent"),
        Ask("s1", 4, 2, after=("s0",), app="agent"),
        Ask("s2", 4, 2, after=("s1",), app="agent"),
    )
    with uds_server(socket_path) as server:
        logs = Driver(frames_endpoint(str(socket_path)), Phase("p", steps), "seed").run()
    assert [r["id"] for r in server.requests] == ["s0", "s1", "s2"]
    assert server.n_connections == 1
    assert all(b.t_sent >= a.t_done for a, b in pairwise(logs))


def test_gate_first_starts_during_the_stream_not_before(socket_path: Path) -> None:
    asks = (Ask("long", 4, 200), Ask("late", 4, 1, after=("long",), gate="first"))
    with uds_server(socket_path):
        long, late = Driver(frames_endpoint(str(socket_path)), Phase("p", asks), "seed").run()
    assert late.t_sent >= long.t_tokens[0]
    assert late.is_complete


def test_refusal_is_an_error_of_that_stream_alone_and_opens_gates(socket_path: Path) -> None:
    def script(request: dict[str, Any]) -> list[bytes]:
        if request["id"] == "a":
            return [
                frame({"id": "a", "event": "error", "code": "E_LIMIT_003", "name": "overloaded", "message": "later"})
            ]
        return uma_script(request)

    asks = (Ask("a", 4, 3), Ask("b", 4, 3, after=("a",)))
    with uds_server(socket_path, script):
        a, b = Driver(frames_endpoint(str(socket_path)), Phase("p", asks), "seed").run()
    assert not a.is_complete and "E_LIMIT_003" in a.error
    assert b.is_complete


def test_error_of_the_connection_ends_its_streams(socket_path: Path) -> None:
    def script(request: dict[str, Any]) -> list[bytes]:
        return [frame({"id": None, "event": "error", "code": "E_PROTO_004", "message": "bad"})]

    with uds_server(socket_path, script):
        (log,) = Driver(frames_endpoint(str(socket_path)), Phase("p", (Ask("a", 4, 3),)), "seed").run()
    assert "E_PROTO_004" in log.error


def test_cancelled_and_short_streams_do_not_count_as_complete(socket_path: Path) -> None:
    def script(request: dict[str, Any]) -> list[bytes]:
        reason = "timeout" if request["id"] == "a" else "stop"
        token = frame({"id": request["id"], "event": "token", "text": "x", "token_id": 1})
        return [
            token,
            frame({"id": request["id"], "event": "eos", "reason": reason, "usage": {"completion_tokens": 1}}),
        ]

    with uds_server(socket_path, script):
        a, b = Driver(frames_endpoint(str(socket_path)), Phase("p", (Ask("a", 4, 3), Ask("b", 4, 3))), "seed").run()
    assert a.error == "timeout"
    assert b.error == "" and not b.is_complete


def test_token_count_that_differs_from_the_servers_is_an_error(socket_path: Path) -> None:
    def script(request: dict[str, Any]) -> list[bytes]:
        return [frame({"id": request["id"], "event": "eos", "reason": "length", "usage": {"completion_tokens": 3}})]

    with uds_server(socket_path, script):
        (log,) = Driver(frames_endpoint(str(socket_path)), Phase("p", (Ask("a", 4, 3),)), "seed").run()
    assert log.error == "0 token events for 3 tokens"


def test_silent_server_ends_with_the_phase(socket_path: Path) -> None:
    asks = (Ask("a", 4, 3), Ask("b", 4, 3, after=("a",)))
    with uds_server(socket_path, lambda request: []):
        a, b = Driver(frames_endpoint(str(socket_path)), Phase("p", asks, timeout_s=0.05), "seed").run()
    assert "not finished" in a.error and "never sent" in b.error


@pytest.mark.parametrize("status", [400, 503])
def test_http_refusal_names_its_status(status: int) -> None:
    body = b'{"error":{"message":"no"}}'
    reply = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)

    with http_server(lambda request: [reply, b""]) as server:
        (log,) = Driver(
            sse_endpoint("127.0.0.1", server.port), Phase("p", (Ask("a", 4, 3),), timeout_s=5.0), "seed"
        ).run()
    assert f"HTTP {status}" in log.error


def test_nobody_listens(socket_path: Path) -> None:
    (log,) = Driver(frames_endpoint(str(socket_path)), Phase("p", (Ask("a", 4, 3),)), "seed").run()
    assert log.error.startswith("cannot send")


@pytest.mark.parametrize(
    ("answer", "error"),
    [(frame({"id": "text", "event": "error", "code": "E_REQUEST_001", "message": "too long"}), ""), (b"", "closed")],
    ids=["refused", "not answered"],
)
def test_a_burden_may_be_refused_but_must_be_answered(socket_path: Path, answer: bytes, error: str) -> None:
    """Otherwise a chat beside a request that was never read would seem to bear it well."""
    with uds_server(socket_path, lambda request: [answer]):
        phase = Phase("p", (Ask("text", 1, 1, burden="text"),), timeout_s=20.0)
        (log,) = Driver(frames_endpoint(str(socket_path)), phase, "seed").run()
    assert log.is_complete is not bool(error) and error in log.error
