"""Instructor, unmodified: forms by schema and by tool, streamed forms, an error, a cancelled request."""

from __future__ import annotations

import json
import signal

import pytest

from tests.daemon.support import eventually
from tests.gateway.apart import fork_server
from tests.gateway.support import n_busy

REQUIREMENT = "instructor==1.17.0"  # needs a jiter that openai 3.54 does not accept
PROGRAM = "tests.gateway.with_instructor"


@pytest.fixture(scope="module")
def forks():
    """Forks of a process that has imported the package, which takes 3 s of a core."""
    server = fork_server(REQUIREMENT, "instructor", "openai")
    yield server
    server.close()


def begin(forks, what, url):
    return forks.start(PROGRAM, [what, url], stderr=2, has_pipes=True)


def run(forks, what, url):
    process = begin(forks, what, url)
    with process.stdin, process.stdout:
        out = process.stdout.read().decode()
    assert process.wait() == 0, out
    return json.loads(out.splitlines()[-1])


def test_forms_by_schema_and_by_tool(forks, work_gateway):
    made = run(forks, "forms", work_gateway.url)
    assert set(made) == {"JSON_SCHEMA", "TOOLS", "TOOLS_STRICT"}
    assert all(form["kind"] in ("cat", "dog") and 0 <= form["age"] <= 9 for form in made.values())


def test_a_form_comes_in_parts(forks, tiny_gateway):
    parts = run(forks, "stream", tiny_gateway.url)
    assert len(parts) > 1 and parts[-1]["kind"] in ("cat", "dog") and any(part["kind"] is None for part in parts[:-1])


def test_an_error_says_what_is_wrong(forks, tiny_gateway):
    assert "temperature" in run(forks, "error", tiny_gateway.url)


def test_leaving_cancels(forks, gateway, fake, levers):
    levers(step_ms=20)
    process = begin(forks, "endless", gateway.url)
    with process.stdin, process.stdout:
        eventually(lambda: n_busy(fake) == 1)
        process.send_signal(signal.SIGTERM)
        process.wait()
    eventually(lambda: n_busy(fake) == 0)
