"""Instructor, unmodified: forms by schema and by tool, streamed forms, an error, a cancelled request."""

from __future__ import annotations

import json
from pathlib import Path

from tests.daemon.support import eventually
from tests.gateway.apart import command_of
from tests.gateway.support import n_busy

REQUIREMENT = "instructor==1.17.0"  # needs a jiter that openai 3.54 does not accept
SCRIPT = Path(__file__).with_name("with_instructor.py")


def run(what: str, url: str):
    with command_of(REQUIREMENT, SCRIPT, what, url) as process:
        out, _ = process.communicate()
    assert process.returncode == 0, out
    return json.loads(out.splitlines()[-1])


def test_forms_by_schema_and_by_tool(work_gateway):
    made = run("forms", work_gateway.url)
    assert set(made) == {"JSON_SCHEMA", "TOOLS", "TOOLS_STRICT"}
    assert all(form["kind"] in ("cat", "dog") and 0 <= form["age"] <= 9 for form in made.values())


def test_a_form_comes_in_parts(tiny_gateway):
    parts = run("stream", tiny_gateway.url)
    assert len(parts) > 1 and parts[-1]["kind"] in ("cat", "dog") and any(part["kind"] is None for part in parts[:-1])


def test_an_error_says_what_is_wrong(tiny_gateway):
    assert "temperature" in run("error", tiny_gateway.url)


def test_leaving_cancels(gateway, fake, levers):
    levers(step_ms=20)
    with command_of(REQUIREMENT, SCRIPT, "endless", gateway.url) as process:
        eventually(lambda: n_busy(fake) == 1)
        process.terminate()
    eventually(lambda: n_busy(fake) == 0)
