"""Clients that die, lie, stall or come in crowds: other clients notice nothing, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading

import pytest

from tests.daemon.support import ROOT, eventually, text_of

PROMPT = "The shell reads commands and"
LONG = "word " * 1500
N_CONNECTIONS = 1000 if os.environ.get("UMA_FUZZ") == "full" else 300  # test_endurance.py: 1,000 without a model
DOOMED = """
import sys
from tests.daemon.support import Wire
wire = Wire(sys.argv[1])
wire.send(id="doomed", prompt=sys.argv[2], max_tokens=4000, ignore_eos=True)
if sys.argv[3] == "stream":
    wire.first_token("doomed")
print("there", flush=True)
wire.sock.settimeout(None)
while wire.event():
    pass
"""


def doomed(path: str, prompt: str, phase: str) -> subprocess.Popen[bytes]:
    """Start a client process that has sent its request and, in phase "stream", has received its first token."""
    command = [sys.executable, "-c", DOOMED, path, prompt, phase]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_kill_9_of_clients_leaves_others_output_unchanged(serve_model):
    """Clients are killed in prefill and in decode, on the real model."""
    daemon = serve_model("--n-ctx", "8192")
    expected = text_of(daemon.generate(PROMPT, max_tokens=200))
    stream = daemon.stream(PROMPT, max_tokens=200).begun()
    for phase, prompt in (
        ("prefill", LONG),
        ("stream", "another one"),
        ("prefill", LONG + "x"),
        ("stream", "and another"),
    ):
        kill(doomed(daemon.path, prompt, phase))
    assert stream.end()["reason"] == "length"
    assert stream.text == expected
    assert daemon.eventually_idle()["kv"]["reserved"] == 0


def test_kill_9_mid_prefill_frees_sequence_and_cells(serve):
    daemon = serve("--parallel", "1", "--hang-timeout-ms", "100")
    daemon.pull(is_hanging=True)
    process = doomed(daemon.path, LONG, "prefill")
    daemon.reach("degraded")
    kill(process)
    daemon.pull(is_hanging=False)
    assert daemon.eventually_idle()["kv"]["reserved"] == 0
    daemon.reach("ready")
    assert daemon.generate("the only sequence is free", max_tokens=2)[-1]["reason"] == "length"


def test_a_slow_reader_pauses_itself_and_nobody_else(serve):
    daemon = serve("--tx-soft-bytes", "4096", "--tx-hard-bytes", "65536")
    expected = text_of(daemon.generate(PROMPT, max_tokens=300))
    with daemon.connect() as slow:
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.send(id="slow", prompt="dawdle", max_tokens=2000, ignore_eos=True)
        eventually(lambda: any(row["is_held"] for row in daemon.ask("sessions")["sessions"]))
        assert text_of(daemon.generate(PROMPT, max_tokens=300)) == expected
        events = slow.until_final("slow")
    assert (events[-1]["reason"], events[-1]["usage"]["completion_tokens"]) == ("length", 2000)


@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_a_reader_that_reads_nothing_does_not_keep_the_sequences(serve_model, engine):
    """The reader is never dropped here. If its sequences were not parked, the other client would wait for ever."""
    small = (
        "--tx-soft-bytes",
        "4096",
        "--write-timeout-ms",
        "0",
        "--parallel",
        "2",
        "--n-ctx",
        "8192",
        "--engine",
        engine,
    )
    daemon = serve_model(*small)
    expected = text_of(daemon.generate(PROMPT, max_tokens=500))
    with daemon.connect() as slow:
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for id in ("s1", "s2", "s3"):
            # it is held after 310 tokens, with the socket's buffer full
            slow.send(id=id, prompt=PROMPT, max_tokens=500, ignore_eos=True)
        eventually(lambda: [row["is_held"] for row in daemon.ask("sessions")["sessions"]] == [True] * 3)
        for priority in ("interactive", "background"):
            text = text_of(daemon.generate(PROMPT, max_tokens=40, priority=priority))
            assert text and expected.startswith(text)
        events: list = []
        while sum(event["event"] == "eos" for event in events) < 3:
            events.append(slow.event())
    for id in ("s1", "s2", "s3"):
        assert text_of([event for event in events if event["id"] == id]) == expected
    assert daemon.eventually_idle()["kv"]["reserved"] == 0


@pytest.mark.parametrize(("end", "reason"), [("cancel", "cancelled"), ("deadline", "timeout"), ("drain", "draining")])
def test_a_request_that_ends_while_it_is_held_ends_once(serve, end, reason):
    """The request's reader lags behind, and the request is ended from elsewhere. There is one final event, after all
    text so far, and the connection stays open.
    """
    daemon = serve("--tx-soft-bytes", "4096", "--tx-hard-bytes", "65536")
    with daemon.connect() as slow:
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        limit = {"timeout_ms": 1500} if end == "deadline" else {}
        slow.send(id="slow", prompt="dawdle", max_tokens=3500, ignore_eos=True, **limit)
        (row,) = eventually(lambda: [row for row in daemon.ask("sessions")["sessions"] if row["is_held"]])
        if end == "cancel":
            with daemon.connect() as other:
                other.send(type="cancel", id="slow", conn=row["conn"])
                assert other.event()["found"]
        elif end == "drain":
            daemon.ask("drain", timeout_ms=0)
        eventually(lambda: not daemon.ask("sessions")["sessions"], "a held request did not end")
        events = slow.until_final("slow")
        slow.send(type="health", id="after")
        assert slow.event()["id"] == "after", "nothing may follow the final event"
    assert [event["event"] for event in events].count("eos") == 1
    assert events[-1]["reason"] == reason
    n_tokens = sum(event["event"] == "token" for event in events)
    assert 0 < n_tokens <= events[-1]["usage"]["completion_tokens"] < 3500
    assert daemon.eventually_idle()["kv"]["reserved"] == 0


def test_garbage_harms_only_its_sender(serve):
    daemon = serve()
    daemon.pull(step_ms=2)
    stream = daemon.stream(PROMPT, max_tokens=300).begun()
    rng = random.Random(3)
    for _ in range(200):
        with daemon.connect() as wire:
            wire.sock.sendall(rng.randbytes(rng.randrange(1, 400)))
            wire.sock.settimeout(0.001)
    assert stream.end()["reason"] == "length"
    assert daemon.eventually_idle()["sessions"]["connections"] >= 1


def test_hundreds_of_connections_and_requests_leave_nothing(serve_model):
    """The number of descriptors returns to its old value, and memory does not grow with the number of connections."""
    daemon = serve_model()
    for _ in range(100):
        daemon.generate(PROMPT, max_tokens=2)
    descriptors, rss = daemon.descriptors(), daemon.rss_bytes()
    for n in range(N_CONNECTIONS):
        with daemon.connect() as wire:
            wire.send(id=n, prompt=PROMPT, max_tokens=1 + n % 3)
            assert wire.until_final(n)[-1]["event"] == "eos"
    for _ in range(N_CONNECTIONS):
        daemon.connect().sock.close()
    status = daemon.eventually_idle()
    eventually(lambda: daemon.status()["sessions"]["connections"] == 1)
    eventually(lambda: daemon.descriptors() <= descriptors, "descriptors leaked")
    assert status["kv"]["reserved"] == 0
    assert daemon.rss_bytes() - rss < 8 << 20


def test_drain_under_a_storm_gives_every_request_its_final_event(serve):
    """Clients keep coming while the daemon drains. Accepted requests end, and the others are told that they were
    refused.
    """
    daemon = serve("--max-connections", "200")
    daemon.pull(step_ms=2)
    outcomes: list[str] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def storm(seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not stop.is_set():
                with daemon.connect() as wire:
                    for n in range(3):
                        wire.send(
                            id=n,
                            prompt="storm " * rng.randrange(1, 300),
                            max_tokens=rng.choice((2, 20, 4000)),
                            ignore_eos=True,
                        )
                    n_open = 3
                    while n_open:
                        event = wire.event()
                        if event["event"] != "token":
                            n_open -= 1
                            outcomes.append(event.get("reason") or event["name"])
        except (ConnectionRefusedError, FileNotFoundError):
            return  # the daemon has gone: no request was sent
        except (EOFError, ConnectionResetError, BrokenPipeError) as failure:
            if daemon.state() not in ("gone", "stopping", "not yet"):
                failures.append(failure)

    threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(outcomes) > 20 or len(daemon.ask("sessions")["sessions"]) > 8)
    progress = daemon.ask("drain", timeout_ms=1000)
    assert progress["state"] == "draining"
    eventually(lambda: daemon.status()["drain"]["remaining"] == 0)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert set(outcomes) <= {"length", "draining", "overloaded", "too_many_sessions"}
    assert "draining" in outcomes
    assert daemon.eventually_idle()["kv"]["reserved"] == 0
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
