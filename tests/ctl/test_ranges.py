"""Values that are no numbers, or that no timer can hold, are wrong usage: one line, and nothing is sent."""

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
