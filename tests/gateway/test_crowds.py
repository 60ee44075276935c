"""Many streams at once, many streams that end early, and what is left when the gateway or the daemon ends among them.

`make fuzz`: 1,000 streams that end early.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import signal

import pytest

from tests.daemon.support import WAIT_S, eventually
from tests.gateway.support import Answer, GatewayProcess, Json, Raw, n_busy
from tests.gateway.test_fuzz import IS_FULL

N_STREAMS = 256
N_LEAVING = 1000 if IS_FULL else 100
N_AT_ONCE = 20
CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True}


def read_all(raws: list[Raw]) -> list[bytes]:
    """Read all streams at the same time. Return what each gets until the gateway closes."""
    got = [b""] * len(raws)
    with selectors.DefaultSelector() as selector:
        for number, raw in enumerate(raws):
            selector.register(raw.sock, selectors.EVENT_READ, number)
        while selector.get_map():
            ready = selector.select(WAIT_S)
            assert ready, "nothing comes any more"
            for key, _ in ready:
                data = raws[key.data].sock.recv(1 << 16)
                got[key.data] += data
                if not data:
                    selector.unregister(raws[key.data].sock)
    return got


def text_of(answer: Answer) -> str:
    return "".join(choice["delta"].get("content") or "" for event in answer.events for choice in event["choices"])


def test_256_streams_at_once_are_all_answered_and_none_gets_another_s_text(serve, before):
    room = (
        "--max-sessions",
        "300",
        "--max-connections",
        "300",
        "--queue-interactive",
        "300",
        "--queue-background",
        "300",
    )
    daemon = serve("--parallel", str(N_STREAMS), "--n-ctx", str(N_STREAMS * 128), "--calibrate", "off", *room)
    gateway = before(daemon)
    daemon.pull(step_ms=5)
    alone = {
        n: gateway.chat(f"prompt {n}", max_tokens=40, temperature=0, ignore_eos=True).json["choices"][0]["message"][
            "content"
        ]
        for n in range(8)
    }
    with contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(gateway.port)) for _ in range(N_STREAMS)]
        for number, raw in enumerate(raws):
            body: Json = {
                **CHAT,
                "messages": [{"role": "user", "content": f"prompt {number % 8}"}],
                "max_tokens": 40,
                "temperature": 0,
            }
            raw.send("POST", "/v1/chat/completions", body)
        answers = [Answer(data) for data in read_all(raws)]
    assert [answer.status for answer in answers] == [200] * N_STREAMS
    assert all(answer.data[-1] == "[DONE]" for answer in answers)
    assert all(text_of(answer) == alone[number % 8] for number, answer in enumerate(answers))
    assert n_busy(daemon) == 0 and "Traceback" not in gateway.log


@pytest.mark.fuzz
def test_who_leaves_in_mid_stream_leaves_no_sequence_busy(serve, before):
    daemon = serve("--parallel", "8", "--calibrate", "off")
    gateway = before(daemon)
    gateway.chat(max_tokens=1)
    n_descriptors = gateway.descriptors(), daemon.descriptors()
    daemon.pull(step_ms=2)
    rng = random.Random(7)
    for _ in range(N_LEAVING // N_AT_ONCE):
        with contextlib.ExitStack() as stack:
            raws = [stack.enter_context(Raw(gateway.port)) for _ in range(N_AT_ONCE)]
            for raw in raws:
                path = rng.choice(
                    ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/completion")
                )
                raw.send(
                    "POST",
                    path,
                    {**CHAT, "prompt": "hi", "max_tokens": 500, "n_predict": 500, "options": {"num_predict": 500}},
                )
            for raw in rng.sample(raws, 8):  # as many streams as there are sequences get their first tokens
                raw.sock.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    raw.sock.recv(rng.randrange(1, 2000))
    tick = eventually(lambda: n_busy(daemon) == 0 and daemon.status(), "the daemon still computes for nobody")
    assert (
        tick["sessions"] == {**tick["sessions"], "queued": 0, "prefill": 0, "decode": 0, "parked": 0}
        and tick["kv"]["reserved"] == 0
    )
    eventually(lambda: (gateway.descriptors(), daemon.descriptors()) <= n_descriptors, "connections are left over")
    assert "Traceback" not in gateway.log + daemon.log
    assert gateway.chat(max_tokens=2).status == 200


def test_killed_in_mid_stream_it_leaves_the_daemon_to_others(serve, before):
    daemon = serve("--parallel", "4")
    gateway = before(daemon)
    other = before(daemon)  # another gateway, which stays up
    daemon.pull(step_ms=20)
    with contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(gateway.port)) for _ in range(8)]  # four of them wait
        for raw in raws:
            raw.send("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1000})
        eventually(lambda: n_busy(daemon) == 8)
        gateway.signal(signal.SIGKILL)
        gateway.wait()
        eventually(lambda: n_busy(daemon) == 0, "the daemon still computes for nobody")
        assert other.chat(max_tokens=3).status == 200
        assert daemon.generate("hello", max_tokens=2)[-1]["reason"] == "length"


def test_a_daemon_that_dies_in_mid_stream_is_an_error_and_the_next_one_is_found(serve, before):
    daemon = serve()
    gateway: GatewayProcess = before(daemon)
    daemon.pull(step_ms=20)
    with Raw(gateway.port) as streaming, Raw(gateway.port) as whole:
        streaming.send("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1000})
        whole.send("POST", "/v1/chat/completions", {**CHAT, "stream": False, "max_tokens": 1000})
        head = streaming.until(b'"content"')
        eventually(lambda: n_busy(daemon) == 2)
        daemon.process.kill()
        cut, refused = Answer(head + streaming.rest()), Answer(whole.rest())
    assert cut.events[-1]["error"]["code"] == "daemon_unavailable" and "[DONE]" not in cut.data, (
        "what is cut off must not look whole"
    )
    assert (refused.status, refused.error["code"]) == (503, "daemon_unavailable") and int(
        refused.headers["retry-after-ms"]
    ) > 0
    assert gateway.get("/health").status == 503
    serve()
    assert gateway.chat(max_tokens=3).status == 200
    assert gateway.get("/health").status == 200
