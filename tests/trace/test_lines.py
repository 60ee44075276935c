"""Ticks become JSON lines and states again."""

from __future__ import annotations

import json

import pytest

from tests.policy.build import state_of, talking
from tests.trace.support import busy_second, lines_of
from uma_core.policy.plan import Plan
from uma_core.trace.lines import Tick, unpack_state


def test_states_survive_the_file_unchanged():
    tick = busy_second()[30]
    context, line = map(json.loads, lines_of([tick]))
    assert unpack_state(line, context) == tick.state


def test_what_could_not_be_read_back_is_refused_at_once():
    class Foreign(tuple):
        _fields = ("a",)

    for value in (Foreign((1,)), object()):
        with pytest.raises(ValueError, match=r"record|CARRIED"):
            lines_of([Tick(state_of(talking(0), memory=value), Plan(), ())])
