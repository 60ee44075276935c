"""Log lines about requests: ids and figures always, prompts only if the configuration asks for them."""

from __future__ import annotations

import io
import json

import pytest

from uma_core.config.options import LogOptions
from uma_core.errors import ErrorCode, UmaError
from uma_core.log import Output


@pytest.fixture
def lines():
    """Start logging; return a function that gives the lines so far."""
    outputs = []

    def start(**options):
        stream = io.StringIO()
        outputs.append(Output(LogOptions(format="json", **options), stream))

        def read():
            outputs[-1].close()
            return [json.loads(line) for line in stream.getvalue().splitlines()]

        return read

    yield start
    for output in outputs:
        output.close()


def of_requests(lines):
    return [line for line in lines if line["part"] == "server.io.journal"]


def test_one_line_tells_how_a_request_ended(server, lines):
    read = lines()
    with server.connect() as client:
        client.send(id="mine", prompt="top secret", max_tokens=4)
        client.until_final("mine")
    (line,) = of_requests(read())
    assert (line["level"], line["message"], line["request"], line["completion_tokens"]) == (
        "info",
        "ended: length",
        "mine",
        4,
    )
    assert {"conn", "uid", "pid", "total_ms"} <= line.keys()
    assert "secret" not in json.dumps(line)


@pytest.mark.parametrize("wants_prompts", [False, True])
@pytest.mark.parametrize("asked", [{"prompt": "top secret"}, {"messages": [{"role": "user", "content": "top secret"}]}])
def test_prompts_are_written_only_where_they_are_wanted(serve, lines, asked, wants_prompts):
    read = lines(level="debug", prompts=wants_prompts)
    server = serve(log={"prompts": wants_prompts})
    with server.connect() as client:
        client.send(id="mine", max_tokens=1, **asked)
        client.until_final("mine")
    (received,) = [line for line in of_requests(read()) if line["message"] == "received"]
    assert ("top secret" in json.dumps(received)) == wants_prompts


def test_wanting_prompts_is_enough_to_see_them(serve, lines):
    read = lines(prompts=True)
    server = serve(log={"prompts": True})
    with server.connect() as client:
        client.send(id=1, prompt="top secret", max_tokens=1)
        client.until_final(1)
    assert [line["prompt"] for line in of_requests(read()) if line["message"] == "received"] == ["top secret"]


def test_a_refusal_has_its_code_and_the_request(server, lines):
    read = lines()
    server.closed = UmaError(ErrorCode.DRAINING, retry_after_ms=1)
    with server.connect() as client:
        client.ask(id="mine", prompt="top secret")
    (line,) = of_requests(read())
    assert line["message"].startswith("generate refused: E_STATE_002")
    assert line["request"] == "mine"
