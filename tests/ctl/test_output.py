"""Standard streams that are full or closed: one line on standard error, exit status 1."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture
def shell(environment):
    """`shell(arguments, redirections)` runs uma-ctl under a shell."""

    def run(arguments: str, redirections: str) -> subprocess.CompletedProcess[str]:
        command = f"{sys.executable} -m uma_ctl {arguments} {redirections}"
        return subprocess.run(
            ["sh", "-c", command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )

    return run


def ready(peer, message):
    if message.get("type") == "status":
        peer.reply(message, state="ready")
    else:
        peer.token(message["id"], "text")
        peer.eos(message["id"])


@pytest.mark.parametrize("words", ["status", "status --json", "--help", "generate Hi", "generate Hi --json"])
def test_a_full_standard_output(serve, ctl, words):
    serve(ready)
    with open("/dev/full", "wb") as full:
        done = ctl(*words.split(), stdout=full.fileno())
    assert done.returncode == 1
    assert "No space left" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("words", ["status", "status --json", "--help", "generate Hi", "generate Hi --json"])
def test_a_closed_standard_output(serve, shell, words):
    """The interpreter starts without it, so this is no fork."""
    serve(ready)
    done = shell(words, ">&-")
    assert done.returncode == 1
    assert "Bad file descriptor" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_standard_error_that_takes_nothing_changes_no_status(shell):
    assert shell("status", "2>/dev/full").returncode == 1
    assert shell("status --nope", "2>/dev/full").returncode == 1
    assert shell("status --nope", "2>&-").returncode == 1


def test_a_closed_standard_input_is_an_empty_one(serve, shell):
    serve(lambda peer, message: peer.eos(message["id"]))
    done = shell("generate", "<&-")
    assert done.returncode == 1 and "the prompt is empty" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("generate", "no prompt: give TEXT or --prompt, or pipe it in"),
        ("tokenize", "no text: give TEXT, or pipe it in"),
        ("detokenize", "no token ids: give IDS, or pipe them in"),
        ("embed", "no texts: give them or --file, or pipe them in"),
        ("rerank query", "no texts: give them or --file, or pipe them in"),
    ],
)
def test_at_a_terminal_nothing_is_awaited_and_the_words_are_the_commands_own(ctl, words, said):
    leader, follower = os.openpty()
    done = ctl(*words.split(), stdin=follower)
    os.close(follower)
    os.close(leader)
    assert done.returncode == 1 and said in done.stderr, done
