"""Values that are no numbers, that no timer can hold or that the protocol refuses are wrong usage: nothing is sent."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "words",
    [
        "generate Hi --timeout 1e300",
        "generate Hi --timeout nan",
        "generate Hi --timeout inf",
        "generate Hi --temp nan",
        "generate Hi --top-p nan",
        "generate Hi --min-p nan",
        "generate Hi --repeat-penalty inf",
        "generate Hi --max-tokens 1073741825",
        "generate Hi --temp 100.5",
        "generate Hi --top-k 1073741825",
        "generate Hi --repeat-penalty 0.001",
        "generate Hi --lora tone=nan",
        "embed Hi --timeout-ms nan",
        "trace --seconds nan",
        "status --watch --interval nan",
        "status --watch --interval 1e300",
        "status --wait ready --timeout nan",
        "drain --timeout 1e300",
    ],
)
def test_it_is_wrong_usage(serve, ctl, words):
    server = serve(lambda peer, message: peer.reply(message))
    done = ctl(*words.split())
    assert done.returncode == 1 and done.stdout == ""
    assert "Traceback" not in done.stderr and "Error: " in done.stderr
    assert server.received == []


def test_an_answer_may_have_no_tokens(serve, ctl):
    """Then the prompt is only read, for the cache or for a later request."""
    server = serve(lambda peer, message: peer.eos(message["id"], "length"))
    assert ctl("generate", "Hi", "--max-tokens", "0").returncode == 0
    assert server.received[0]["max_tokens"] == 0
