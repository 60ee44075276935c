"""Leaks, floods and storms."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest


def n_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_thousand_connections_leave_nothing_behind(server):
    with server.connect() as client:
        client.send(id=0, prompt="warm")
        client.until_final(0)
    server.eventually(lambda: not server.app.clients)
    before = n_descriptors()
    for n in range(1000):
        with server.connect() as client:
            if n % 4 == 1:
                client.send(id=n, prompt="ab")
                client.until_final(n)
            elif n % 4 == 2:
                client.send(id=n, prompt="ab", max_tokens=1 << 20)
            elif n % 4 == 3:
                client.sock.sendall(b"\x10\0\0\0{")
    server.eventually(lambda: not server.app.clients and not server.compute.sessions)
    assert n_descriptors() == before
    assert server.on_loop(lambda: (len(server.app._dirty), len(server.app.ledger), len(server.loop._callbacks))) == (
        0,
        0,
        2,
    )
    assert server.on_loop(lambda: len(server.loop._timers)) < 200


def test_garbage_over_the_socket(server, texts):
    rng = random.Random(11)
    with server.connect() as good:
        good.send(id="good", prompt="good", max_tokens=2000)
        for _ in range(150):
            with server.connect() as rude:
                kind = rng.randrange(3)
                junk = rng.randbytes(rng.randrange(1, 400))
                if kind == 0:
                    junk = struct.pack("<I", len(junk)) + junk
                elif kind == 1:
                    junk = junk.hex().encode() + b"\n"
                try:
                    rude.sock.sendall(junk)
                    rude.sock.shutdown(rng.choice((socket.SHUT_WR, socket.SHUT_RDWR)))
                except OSError:
                    continue
        assert texts(good.until_final("good"), "good") == "good" * 500
    server.eventually(lambda: not server.app.clients)


def test_random_clients_each_get_one_final_event(serve):
    """Clients behave well, cancel or vanish. A client that stays gets exactly one final event for every request."""
    server = serve(limits={"max_in_flight": 8})
    rng = random.Random(3)
    for _ in range(60):
        with server.connect() as client:
            ids = list(range(rng.randrange(1, 7)))
            for id in ids:
                client.send(
                    id=id,
                    prompt="abcdef"[: rng.randrange(1, 6)],
                    max_tokens=rng.randrange(1, 60),
                    stream=rng.random() < 0.7,
                )
            cancelled = [id for id in ids if rng.random() < 0.4]
            for id in cancelled:
                client.send(type="cancel", id=id)
            if rng.random() < 0.3:
                continue
            client.send(type="health", id="last")
            events, n_replies = [], 0
            while len([e for e in events if e["event"] == "eos"]) < len(ids) or n_replies < len(cancelled) + 1:
                events.append(client.event())
                n_replies += events[-1]["event"] == "reply"
            finals = [e["id"] for e in events if e["event"] == "eos"]
            assert sorted(finals) == ids
            for id in ids:
                mine = [e["event"] for e in events if e["id"] == id and e["event"] != "reply"]
                assert mine[-1] == "eos"


LIMITED_SERVER = """
import resource, sys
sys.path.insert(0, {tests!r})
from conftest import Harness
harness = Harness({path!r}).start()
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
print("ready", flush=True)
for line in sys.stdin:
    print(harness.loop.n_turns, len(harness.app.clients), flush=True)
harness.stop()
"""


def test_out_of_descriptors_for_real(socket_path, make_client):
    here = Path(__file__).parent
    program = LIMITED_SERVER.format(tests=str(here), path=socket_path)
    env = {**os.environ, "PYTHONPATH": str(here.parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as server:

        def ask() -> list[int]:
            server.stdin.write("\n")
            server.stdin.flush()
            return [int(word) for word in server.stdout.readline().split()]

        assert server.stdout.readline() == "ready\n"
        served, shed = [], 0
        while shed < 5:
            client = make_client(socket_path)
            with suppress(BrokenPipeError):  # it was shed before it could ask; the server's message can be read
                client.send(type="health")
            event = client.event()
            if event["event"] == "reply":
                served.append(client)
            else:
                assert event["code"] == "E_LIMIT_004"
                shed += 1
                client.sock.close()
        assert 10 < len(served) < 40
        before, n_clients = ask()
        assert n_clients == len(served)
        time.sleep(0.2)  # real time must pass: the test observes that nothing happens
        assert ask()[0] - before <= 3, "it spins"
        assert served[0].ask(type="health")["event"] == "reply"
        for client in served:
            client.sock.close()
        while ask()[1]:
            time.sleep(0.01)
        with make_client(socket_path) as client:
            client.send(id=1, prompt="abc")
            assert client.until_final(1)[-1]["event"] == "eos"
        server.stdin.close()
        assert server.wait(20) == 0


@pytest.mark.fuzz
def test_many_random_streams_over_the_socket(server):
    """The server closes the connection or keeps it usable, and the daemon continues to serve."""
    rng = random.Random(1)
    n = 20_000 if os.environ.get("UMA_FUZZ") == "full" else 500
    for _ in range(n):
        junk = rng.randbytes(rng.randrange(1, 100))
        with server.connect() as client:
            try:
                client.sock.sendall(junk)
                client.sock.shutdown(socket.SHUT_WR)
                client.rest()
            except ConnectionError:
                continue
            except TimeoutError:
                pytest.fail(f"left hanging: {junk!r}")
    with server.connect() as client:
        assert client.ask(type="health")["event"] == "reply"
