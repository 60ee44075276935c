"""What a client is told while it waits: in the queue, while a long prompt is read, and while nothing else comes."""

from __future__ import annotations

import re

import pytest

from tests.daemon.support import ENDLESS, eventually, running
from tests.gateway.support import Answer, Raw, gateway_before, n_busy

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
PATHS = pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 3}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 3}),
    ],
)
PING = b"2\r\n\n\n\r\n"  # an HTTP chunk with two ends of a line: the connection is not silent


@pytest.fixture(scope="module")
def narrow(module_folder):
    """A daemon of one sequence, and a gateway that pings every 50 ms."""
    path = str(module_folder / "narrow.sock")
    with (
        running(module_folder, "--engine", "fake", "--parallel", "1", has_levers=True, path=path, **ENDLESS) as daemon,
        gateway_before(module_folder, daemon, "--ping-s", "0.05") as gateway,
    ):
        yield daemon, gateway


@pytest.fixture
def busy(narrow):
    """`narrow`, and the stream that has the sequence."""
    daemon, gateway = narrow
    daemon.pull(step_ms=25)
    with Raw(gateway.port) as raw:
        raw.send("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 2000, "stream": True})
        raw.until(b"delta")
        yield daemon, gateway, raw
    daemon.pull(step_ms=0)
    daemon.eventually_idle()


@PATHS
def test_a_waiting_stream_begins_and_hears_where_it_stands(busy, path, body):
    daemon, gateway, served = busy
    asking = {**body, "stream": True}
    with Raw(gateway.port) as first, Raw(gateway.port) as second:
        first.send("POST", path, asking)
        eventually(lambda: n_busy(daemon) == 2)
        second.send("POST", path, asking)
        head = second.until(b"queue_position=1")
        assert b"200 OK" in head and b"x-queue-position: 1" in head
        assert int(re.search(rb"x-queue-wait-ms: (\d+)", head)[1]) > 0
        waited = second.until(PING)
        served.sock.close()
        answers = [Answer(first.rest()), Answer(head + waited + second.rest())]
    for answer in answers:
        assert answer.status == 200 and "error" not in answer.events[-1]
    positions = [
        int(found[1]) for comment in answers[1].comments if (found := re.match(r"queue_position=(\d+)", comment))
    ]
    assert positions[0] == 1 and positions == sorted(positions, reverse=True)


@PATHS
def test_a_waiting_stream_has_no_comments_where_its_client_cannot_read_them(busy, path, body):
    """The benchmarks of SGLang and vLLM read every line that is not blank as JSON, so a comment made the request
    fail.
    """
    daemon, gateway, served = busy
    with Raw(gateway.port) as waiting:
        waiting.send("POST", path, {**body, "stream": True, "queue_updates": False})
        head = waiting.until(PING) + waiting.until(PING)
        assert b"x-queue-position: 0" in head and n_busy(daemon) == 2
        served.sock.close()
        answer = Answer(head + waiting.rest())
    assert answer.status == 200 and "error" not in answer.events[-1] and answer.comments == []


def test_an_answer_that_is_not_streamed_says_where_it_stood(busy):
    daemon, gateway, served = busy
    with Raw(gateway.port) as waiting:
        waiting.send("POST", "/v1/chat/completions", CHAT)
        eventually(lambda: n_busy(daemon) == 2)
        served.sock.close()
        answer = Answer(waiting.rest())
    assert (
        answer.status == 200
        and answer.headers["x-queue-position"] == "0"
        and int(answer.headers["x-queue-wait-ms"]) > 0
    )


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_leaves_the_queue(busy, stream):
    daemon, gateway, _ = busy
    with Raw(gateway.port) as waiting:
        waiting.send("POST", "/v1/chat/completions", {**CHAT, "stream": stream})
        eventually(lambda: n_busy(daemon) == 2)
    eventually(lambda: n_busy(daemon) == 1)


def test_a_full_queue_is_429_with_the_time_to_come_back(serve, before):
    daemon = serve("--parallel", "1", "--queue-interactive", "0", **ENDLESS)
    gateway = before(daemon)
    daemon.pull(step_ms=25)
    with Raw(gateway.port) as raw:
        raw.send("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 2000, "stream": True})
        raw.until(b"delta")
        answer = gateway.chat()
    assert (answer.status, answer.error["code"], answer.error["type"]) == (429, "overloaded", "rate_limit_error")
    assert int(answer.headers["retry-after-ms"]) > 0 and int(answer.headers["retry-after"]) > 0


def test_a_silent_stream_is_kept_alive(serve, before):
    daemon = serve()
    gateway = before(daemon, "--ping-s", "0.05")
    daemon.pull(step_ms=300)
    answer = gateway.chat(max_tokens=3, stream=True)
    assert answer.chunks.count(b"\n\n") >= 2 and answer.comments == [] and answer.data[-1] == "[DONE]"
    assert '""' not in answer.data, "an event with an empty text breaks some clients"


def test_a_stream_of_several_prompts_is_kept_alive_after_the_first_has_ended(serve, before):
    """Only the first answer's connection told that it was time for a blank line, and only as long as it was read."""
    daemon = serve("--parallel", "1")
    gateway = before(daemon, "--ping-s", "0.05")
    daemon.pull(step_ms=300)
    answer = gateway.post("/v1/completions", prompt=["once", "upon"], max_tokens=3, stream=True)
    ended = next(i for i, chunk in enumerate(answer.chunks) if b'"finish_reason":"length"' in chunk)
    assert answer.chunks[ended:].count(b"\n\n") >= 2 and answer.data[-1] == "[DONE]"
