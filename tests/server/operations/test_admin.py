"""What the administrators' operations leave behind when the daemon stops."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trace.support import busy_second
from uma_core.clock import ManualClock
from uma_core.errors import ErrorCode, UmaError
from uma_core.server.io.loop import Loop
from uma_core.server.operations import admin
from uma_core.server.operations.admin import Admin


@pytest.fixture
def stopped():
    """Record ticks in two ways, stop the daemon, and return the answers."""
    recorders: list[Any] = []
    host = SimpleNamespace(engine=object(), record=recorders.append)
    loop = Loop(ManualClock())

    def stop() -> list[Any]:
        operations, answers = Admin(loop, host, None, None), []
        for form in ("jsonl", "chrome"):
            operations("trace", {"seconds": 60.0, "format": form}, answers.append)
        for tick in busy_second():
            for recorder in recorders:
                recorder(*tick)
        operations.close()
        return answers

    yield stop
    loop.close()


def test_a_recording_is_answered_with_what_it_has(stopped):
    lines, timeline = (json.loads(b"{%b}" % answer) for answer in stopped())
    assert lines["n_ticks"] == timeline["n_ticks"] > 10 and lines["n_left_out"] == 0
    assert lines["is_cut_short"] and timeline["is_cut_short"]


def test_what_takes_too_long_to_encode_is_counted(stopped, monkeypatch):
    monkeypatch.setattr(admin, "STOP_S", -1.0)
    lines, _ = (json.loads(b"{%b}" % answer) for answer in stopped())
    assert (lines["n_ticks"], lines["lines"]) == (0, []) and lines["n_left_out"] > 10


def test_a_recording_that_cannot_be_encoded_does_not_keep_the_daemon_from_stopping(stopped, monkeypatch):
    def fail(*_):
        raise ValueError("a value that cannot be recorded")

    monkeypatch.setattr(admin, "encoded", fail)
    answers = stopped()
    assert [isinstance(answer, UmaError) and answer.error for answer in answers] == [ErrorCode.INTERNAL] * 2
