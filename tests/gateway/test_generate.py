"""Ends of answers, and who may ask for which priority."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from uma_gateway.errors import GatewayError, Kind
from uma_gateway.exchange import Exchange
from uma_gateway.generate import answers_of, ended, note_end, priority_fields, queue_comment, spent_ms, stop_told


@pytest.mark.parametrize(
    ("eos", "kind"),
    [
        ({"reason": "error", "error": {"code": "E_LIMIT_003", "message": "x"}}, Kind.RATE_LIMIT),
        ({"reason": "error"}, Kind.SERVER),
        ({"reason": "draining"}, Kind.UNAVAILABLE),
        ({"reason": "timeout"}, Kind.GENERATION_TIMEOUT),
        ({"reason": "cancelled"}, Kind.CANCELLED),
        ({"reason": "something new"}, Kind.CANCELLED),
    ],
)
def test_an_answer_that_is_not_complete_never_looks_complete(eos: dict[str, Any], kind: Kind) -> None:
    for good in ({"reason": "stop"}, {"reason": "length"}):
        assert ended(good) is good
    with pytest.raises(GatewayError) as caught:
        ended(eos)
    assert caught.value.kind is kind
    with pytest.raises(GatewayError):
        answers_of({"reason": "stop", "answers": [{"reason": "stop", "index": 0}, {**eos, "index": 1}]})


def test_one_answer_is_the_first_of_several() -> None:
    assert answers_of({"reason": "stop"}) == [{"reason": "stop", "index": 0}]


def test_only_a_wanted_stop_text_is_told() -> None:
    end = {"stop": {"text": "END"}}
    assert stop_told(end, {"END"}) == "END" and stop_told(end, set()) == "" == stop_told({"stop": None}, {"END"})


def exchange_of(priority: str = "", key: str = "interactive") -> Exchange:
    caller = SimpleNamespace(key=SimpleNamespace(priority=key))
    return cast("Exchange", SimpleNamespace(header=lambda name: priority, caller=caller, facts={}))


@pytest.mark.parametrize(
    ("header", "body", "told"),
    [
        ("", {}, {}),
        ("", {"service_tier": "auto"}, {}),
        ("", {"service_tier": "flex"}, {"priority": "background"}),
        ("", {"priority": "background", "service_tier": "priority"}, {"priority": "background"}),
        ("Interactive", {"priority": "background"}, {"priority": "interactive"}),
        ("", {"priority": 5}, {}),  # vLLM's
    ],
)
def test_the_header_goes_before_the_fields(header: str, body: dict[str, Any], told: dict[str, str]) -> None:
    assert priority_fields(exchange_of(header), body) == told


def test_nobody_gets_a_higher_priority_than_the_key_allows() -> None:
    for header in ("", "interactive"):
        assert priority_fields(exchange_of(header, "background"), {}) == {"priority": "background"}


@pytest.mark.parametrize("priority", ["urgent", {"a": 1}, ["background"]])
def test_a_priority_that_is_none_is_named(priority: Any) -> None:
    body = {"priority": priority}
    with pytest.raises(GatewayError) as caught:
        priority_fields(exchange_of(), body)
    assert caught.value.param == "priority"


@pytest.mark.parametrize(
    ("timing", "spent"),
    [
        ({"total_ms": 100.0, "ttft_ms": 40.0, "queue_ms": 10.0}, (30.0, 60.0)),
        ({"total_ms": 100.0, "queue_ms": 10.0}, (90.0, 0.0)),  # no token came
        ({}, (0.0, 0.0)),
    ],
)
def test_waiting_is_no_time_of_the_prompt(timing: dict[str, float], spent: tuple[float, float]) -> None:
    assert spent_ms(timing) == spent


def test_a_log_line_adds_up_the_answers_of_a_request() -> None:
    exchange = exchange_of()
    for n in (2, 3):
        note_end(exchange, {"reason": "stop", "usage": {"completion_tokens": n}, "timing": {"ttft_ms": 1.0}})
    assert exchange.facts == {"completion_tokens": 5, "ttft_ms": 1.0, "reason": "stop"}


def test_a_place_in_the_queue_is_a_comment() -> None:
    assert queue_comment({"position": 3, "wait_ms": 40}) == b": queue_position=3 wait_ms=40\n\n"
