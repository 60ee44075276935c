"""`digest` and `prefix_hashes` over the socket, as docs/PROTOCOL.md describes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.examples import EXAMPLES
from tests.daemon.support import SMALL, TINY, DaemonProcess, eventually, running

KEY = "000102030405060708090a0b0c0d0e0f"
VARIES = {"generation", "token_ms"}  # values of the example that vary: one is a time, the other a measurement
PROMPT = "the same beginning of every request of this office, " * 6


@pytest.fixture(scope="module")
def fake(module_folder: Path) -> Iterator[DaemonProcess]:
    with running(module_folder, "--engine", "fake", "--n-ctx", "131072", has_levers=True) as daemon:
        yield daemon


def test_the_protocols_example(module_folder: Path) -> None:
    asked, answered = EXAMPLES["digest"].requests, EXAMPLES["digest"].answers
    generation = None
    with (
        running(module_folder, "--model", str(TINY), *SMALL, path=str(module_folder / "tiny.sock")) as daemon,
        daemon.connect() as wire,
    ):
        for request, expected in zip(asked, answered, strict=True):
            if request["type"] == "digest" and request["id"] == 2:
                daemon.generate(asked[0]["prompt"], max_tokens=1)
                eventually(lambda: daemon.ask("digest", key="f" * 32)["added"], "the prompt is not in the cache")
            if "since" in request:
                request = {**request, "since": generation}
            wire.send(**request)
            reply = wire.event()
            generation = reply.get("generation")
            assert reply.keys() == expected.keys()
            assert {k: v for k, v in reply.items() if k not in VARIES} == {
                k: v for k, v in expected.items() if k not in VARIES
            }


def test_a_prompt_that_was_answered_is_in_the_digest(fake: DaemonProcess) -> None:
    """In every form of input, including a large prompt, which another process reads."""
    messages = [{"role": "user", "content": PROMPT}]
    for given in (
        {"prompt": PROMPT},
        {"messages": messages},
        {"tokens": list(range(3, 90)) * 3},
        {"prompt": PROMPT[7:] * 60},
    ):
        hashes = fake.ask("prefix_hashes", key=KEY, **given)["hashes"]
        before = set(fake.ask("digest", key=KEY)["added"])
        assert hashes and not before.intersection(hashes)
        with fake.connect() as wire:
            wire.send(id="g", max_tokens=2, **given)
            n_tokens = wire.until_final("g")[-1]["usage"]["prompt_tokens"]
        assert len(hashes) == n_tokens // 64
        eventually(
            lambda hashes=hashes: set(fake.ask("digest", key=KEY)["added"]).issuperset(hashes),
            "it is not in the digest",
        )


def test_another_user_sees_nothing_of_it_and_an_untrusted_one_is_refused(fake: DaemonProcess) -> None:
    fake.generate(PROMPT, max_tokens=2)
    fake.pull(peer=[0, 0, os.getpid()] if os.getuid() else [12345, 12345, 1])
    try:
        reply = fake.ask("digest", key=KEY)
    finally:
        fake.pull(peer=None)
    if os.getuid():  # the other user is root, who is trusted and sees only its own prompts
        assert reply["added"] == []
    else:  # the other user is not trusted and cannot even connect
        assert reply["name"] == "forbidden"


def test_a_key_that_is_none(fake: DaemonProcess) -> None:
    for type in ("digest", "prefix_hashes"):
        for key in ("0" * 31, "0" * 33, "x" * 32, "0" * 130, None):
            error = fake.ask(type, key=key, **({"prompt": "a"} if type == "prefix_hashes" else {}))
            assert (error["name"], error["detail"]["field"]) == ("bad_request", "key")


def test_what_waits_is_in_the_figures(fake: DaemonProcess) -> None:
    fake.pull(step_ms=20)
    streams = [fake.stream(f"stream {i}", max_tokens=400, priority="interactive").begun() for i in range(4)]
    waiting = [
        fake.stream(f"waits {i}", max_tokens=400, priority="background", queue_updates=True).begun() for i in range(2)
    ]
    figures = fake.ask("digest", key=KEY)
    assert (figures["active"], figures["queued"]) == (4, {"interactive": 0, "background": 2})
    assert figures["wait_ms"]["background"] >= figures["wait_ms"]["interactive"] > 0
    assert figures["free_pages"] < figures["total_pages"]
    for stream in (*waiting, *streams):
        stream.cancel()
        stream.end()
    fake.pull(step_ms=0)
