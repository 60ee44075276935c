"""Options of a request that go beyond taking the likeliest token."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.executor.rig import Rig
from uma_core.engine.fake.engine import FakeModel
from uma_core.session.events import Token
from uma_core.types import FinishReason, Priority, Reasoning, SamplingParams, TokenLogprob

SHORT = FakeModel(eog_every=3)  # answers end by themselves after a few tokens


def answer(model: FakeModel | None = None, n: int = 40, **fields: Any) -> tuple[str, FinishReason, int]:
    """Return text, reason and number of tokens."""
    rig = Rig(model)
    rig.submit("a", max_tokens=n, **fields)
    rig.run()
    rig.check_all_free()
    (final,) = rig.finals("a")
    return rig.text("a"), final.reason, final.usage["completion_tokens"]


def test_an_answer_has_its_least_length() -> None:
    text, reason, n = answer(SHORT)
    assert reason is FinishReason.STOP and n < 12
    longer, reason, n_longer = answer(SHORT, sampling=SamplingParams(min_tokens=12))
    assert longer.startswith(text) and n_longer >= 12
    assert reason is FinishReason.STOP and n_longer < 40, "and then it ends as others do"


def test_a_stop_token_ends_the_answer_and_is_no_part_of_it() -> None:
    text, _, _ = answer()
    at = next(i for i in range(5, 40) if text[i] not in text[:i])
    stops = SamplingParams(stop_token_ids=(ord(text[at]), 255))
    assert answer(sampling=stops) == (text[:at], FinishReason.STOP, at)
    late = SamplingParams(stop_token_ids=(ord(text[at]),), min_tokens=at + 3)
    longer, _, n = answer(sampling=late)
    assert n >= at + 3 and longer[:at] == text[:at] and text[at] not in longer[: at + 3]


def test_a_banned_token_never_comes_and_a_favoured_one_always() -> None:
    text, _, _ = answer()
    banned = SamplingParams(logit_bias=((ord(text[0]), -math.inf),))
    assert text[0] not in answer(sampling=banned)[0]
    assert answer(sampling=SamplingParams(logit_bias=((ord("Q"), 50.0),)))[0] == "Q" * 40


# -- log probabilities


def told(rig: Rig, request_id: str = "a") -> list[TokenLogprob]:
    """Return all log probabilities that came, in events and at the end."""
    (final,) = rig.finals(request_id)
    events = [e for e in rig.seen if isinstance(e, Token) and e.request_id == request_id]
    return [one for event in [*events, final] for one in event.logprobs or ()]


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.BACKGROUND])
def test_every_token_comes_with_its_log_probability_once(priority: Priority) -> None:
    rig = Rig()
    for name, stream in (("a", True), ("b", False)):
        rig.submit(name, max_tokens=20, priority=priority, stream=stream, sampling=SamplingParams(logprobs=2))
    rig.run()
    for name in ("a", "b"):
        ones = told(rig, name)
        assert b"".join(one.data for one in ones).decode() == rig.text(name)
        assert [len(one.top) for one in ones] == [2] * 20
        assert all(one.top[0] == (one.token_id, one.data, one.logprob) for one in ones), "greedy takes the likeliest"
    assert [e.logprobs for e in rig.finals("a")] == [None], "all of them came with the text"


def test_each_event_carries_the_tokens_of_its_own_text() -> None:
    plain, _, _ = answer()
    rig = Rig()
    rig.submit("a", max_tokens=40, stop=(plain[3:5] + "Q", plain[9:12] + "Q"), sampling=SamplingParams(logprobs=0))
    rig.run()
    events = [e for e in rig.seen if isinstance(e, Token)]
    assert any(len(e.text) > 1 for e in events), "something was held back"
    for event in events:
        assert event.logprobs and b"".join(one.data for one in event.logprobs).decode() == event.text


def test_what_nobody_asked_for_does_not_come() -> None:
    rig = Rig()
    rig.submit("a", max_tokens=5, sampling=SamplingParams(min_tokens=2))
    rig.run()
    assert told(rig) == [] and rig.finals("a")[0].logprobs is None


# -- the cause of the end


def test_the_end_says_which_stop_it_was() -> None:
    text, _, _ = answer()
    for fields, stop in (
        ({"stop": ("QQ", text[7:10])}, {"text": text[7:10]}),
        ({"sampling": SamplingParams(stop_token_ids=(255, ord(text[7])))}, {"token_id": ord(text[7])}),
        ({"stop": (text[7:10],), "sampling": SamplingParams(logprobs=1)}, {"text": text[7:10]}),
        ({}, None),
    ):
        rig = Rig()
        rig.submit("a", max_tokens=40, **fields)
        rig.run()
        assert rig.finals("a")[0].stop == stop
        if stop and "text" in stop:
            assert rig.text("a") == text[: text.index(text[7:10])], "exact, though it spans tokens"
    rig = Rig(SHORT)
    rig.submit("a", max_tokens=40, stop=("Q",))
    rig.run()
    assert rig.finals("a")[0].stop is None, "the model's own end is none of the request's"


# -- control tokens


def test_control_tokens_appear_only_where_they_are_asked_for() -> None:
    always_bos = SamplingParams(logit_bias=((256, 50.0),))
    assert answer(n=3, sampling=always_bos)[0] == ""
    assert answer(n=3, sampling=always_bos, preserved_tokens=(256,))[0] == "<bos>" * 3
    told_too = SamplingParams(logit_bias=((256, 50.0),), logprobs=0)
    assert answer(n=3, sampling=told_too, preserved_tokens=(256,))[0] == "<bos>" * 3


# -- thoughts


def thought(budget: int | None, prompt: str = "[", n: int = 60, **fields: Any) -> tuple[str, dict[str, int]]:
    """Return text and usage of an answer that thinks from its first token on. The engine's language has no `]`."""
    rig = Rig()
    rig.submit("a", prompt=prompt, max_tokens=n, reasoning=Reasoning("[", "]", budget, "enough."), **fields)
    rig.run()
    rig.check_all_free()
    (final,) = rig.finals("a")
    return rig.text("a"), final.usage


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_thought_ends_at_its_budget(budget: int) -> None:
    free, usage = thought(None)
    assert usage["reasoning_tokens"] == 60 and "]" not in free
    text, usage = thought(budget)
    assert text[: budget + 8] == free[:budget] + "enough.]" and len(text) == 60
    assert usage["reasoning_tokens"] == budget + len("enough.")
    assert text.count("]") == 1, "what follows is the model's own"


def test_a_thought_that_begins_in_the_answer_is_limited_too() -> None:
    favoured = SamplingParams(logit_bias=((ord("["), 50.0),))
    text, usage = thought(3, prompt="x", sampling=favoured)
    assert text.startswith("[[[[enough.]") and usage["reasoning_tokens"] == 10


def test_requests_without_thoughts_say_nothing_of_them() -> None:
    rig = Rig()
    rig.submit("a", max_tokens=3)
    rig.run()
    assert "reasoning_tokens" not in rig.finals("a")[0].usage
