"""The client in PROTOCOL.md is thirty lines, and it runs."""

from __future__ import annotations

import subprocess
import sys

from tests.ctl.documented import CLIENT


def run(socket_path, prompt):
    return subprocess.run(
        [sys.executable, "-c", CLIENT, socket_path, prompt], capture_output=True, text=True, timeout=60
    )


def test_it_has_thirty_lines():
    assert sum(bool(line.strip()) for line in CLIENT.splitlines()) <= 30


def test_it_streams_an_answer(serve, socket_path):
    def script(peer, message):
        assert message == {"id": "1", "prompt": "Hello", "max_tokens": 32}
        peer.token("1", "Hi ")
        peer.token("1", "there")
        peer.eos("1", "length")

    serve(script)
    done = run(socket_path, "Hello")
    assert (done.returncode, done.stdout) == (0, "Hi there\n[length, 2 tokens]\n")


def test_it_shows_a_refusal(serve, socket_path):
    serve(lambda peer, message: peer.refuse("1", "E_LIMIT_003", "overloaded", "come back later"))
    done = run(socket_path, "Hello")
    assert done.returncode == 1
    assert done.stderr == "E_LIMIT_003: come back later\n"
