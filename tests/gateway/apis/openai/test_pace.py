"""Progress of an answer while it is generated."""

from __future__ import annotations

from typing import Any, cast

import pytest

from uma_gateway.apis.openai.pace import Pace, progress_field
from uma_gateway.errors import GatewayError
from uma_gateway.model import Model

PROGRESS = {"prompt_tokens": 10, "cached_tokens": 4, "read_tokens": 8, "read_ms": 20.4}
EACH = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


class Daemon:
    def __init__(self, *fields: str) -> None:
        self.fields = fields

    def can(self, field: str) -> bool:
        return field in self.fields


@pytest.mark.parametrize(
    ("body", "is_wanted"),
    [
        ({}, False),
        ({"return_progress": True}, True),
        ({"timings_per_token": True}, True),
        (EACH, True),
        ({"stream_options": {"continuous_usage_stats": True}}, False),  # as in vLLM
    ],
)
def test_a_daemon_reports_where_its_client_wants_it(body: dict[str, Any], is_wanted: bool) -> None:
    asked = progress_field(body, cast("Model", Daemon("prompt_progress")))
    assert asked == ({"prompt_progress": True} if is_wanted else {})
    if is_wanted:
        with pytest.raises(GatewayError):
            progress_field(body, cast("Model", Daemon()))


def test_who_wants_nothing_is_told_nothing() -> None:
    pace = Pace({})
    assert pace.read(PROGRESS) == {} and pace.token({}, 0) == {} and not pace.tells_tokens


def test_each_answer_s_tokens_are_counted_by_themselves() -> None:
    pace = Pace(EACH)
    pace.read(PROGRESS)
    assert pace.token({"n_tokens": 2}, 0)["usage"]["completion_tokens"] == 2
    assert pace.token({}, 1)["usage"]["completion_tokens"] == 1
    usage = pace.token({}, 0)["usage"]
    assert (usage["completion_tokens"], usage["prompt_tokens"], usage["total_tokens"]) == (3, 10, 13)


def test_a_prompt_that_is_being_read_has_its_figures() -> None:
    told = Pace({"return_progress": True, "timings_per_token": True}).read(PROGRESS)
    assert told["prompt_progress"] == {"total": 10, "cache": 4, "processed": 8, "time_ms": 20}
    assert (told["timings"]["prompt_n"], told["timings"]["predicted_n"]) == (4, 0)
    assert "timings" not in Pace({"return_progress": True}).read(PROGRESS)
