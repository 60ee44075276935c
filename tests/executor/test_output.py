"""What clients are told of the tokens, and where an answer ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.executor.rig import Rig, alone
from uma_core.engine.fake.engine import FakeModel
from uma_core.session.events import Token
from uma_core.types import FinishReason, Reasoning, SamplingParams


def test_without_streaming_the_text_comes_in_the_final() -> None:
    rig = Rig()
    rig.submit("a", max_tokens=6, stream=False)
    rig.run()
    assert not any(isinstance(e, Token) for e in rig.seen)
    assert rig.finals("a")[0].text == alone(max_tokens=6)


def test_stop_string_ends_before_itself() -> None:
    whole = alone(max_tokens=30)
    stop = whole[8:11]
    rig = Rig()
    rig.submit("a", max_tokens=30, stop=(stop,))
    rig.run()
    assert rig.finals("a")[0].reason is FinishReason.STOP
    assert rig.text("a") == whole[: whole.find(stop)]


def test_end_of_generation_token_stops_unless_it_is_banned() -> None:
    model = FakeModel(eog_every=3)
    rig = Rig(model)
    rig.submit("a", max_tokens=500)
    rig.run()
    assert rig.finals("a")[0].reason is FinishReason.STOP


def test_a_token_is_delivered_once_and_nothing_after_the_end() -> None:
    """Its event tells how many tokens its text stands for, and an answer that has ended does not end again."""
    rig = Rig()
    rig.submit("a", max_tokens=9)
    rig.tick()
    (session,) = rig.executor.table
    rig.run()
    tokens = [event for event in rig.seen if isinstance(event, Token)]
    assert sum(token.n_tokens for token in tokens) <= 9 == rig.finals("a")[0].usage["completion_tokens"]
    rig.executor.output.finish(session, FinishReason.CANCELLED, rig.clock.now_ns())
    rig.executor.output.deliver_first(session)
    rig.tick()
    rig.check_one_final_each()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"stop": ("x",)}, True),
        ({"sampling": SamplingParams(temperature=1.0, seed=1)}, True),
        ({"sampling": SamplingParams(stop_token_ids=(5,))}, False),
        ({"sampling": SamplingParams(logprobs=0)}, False),
        ({"preserved_tokens": (5,)}, False),
        ({"prompt_logprobs": 0}, False),
        ({"banned_strings": ("x",)}, False),
        ({"reasoning": Reasoning("<", ">")}, False),
    ],
)
def test_the_short_way_is_for_tokens_that_are_only_text(fields: dict[str, Any], expected: bool) -> None:
    rig = Rig()
    rig.submit("a", max_tokens=9, **fields)
    rig.tick()
    assert [session.is_plain for session in rig.executor.table] == [expected]
    rig.run()
    rig.check_all_free()


def test_a_stop_token_is_told_and_is_no_text() -> None:
    rig = Rig()
    rig.submit("a", max_tokens=20)
    rig.tick()
    (session,) = rig.executor.table
    rig.run()
    whole, stop = rig.text("a"), session.generated[5]
    n = session.generated.index(stop)
    rig.submit("b", max_tokens=20, sampling=SamplingParams(stop_token_ids=(stop,)))
    rig.run()
    (final,) = rig.finals("b")
    assert final.reason is FinishReason.STOP and final.stop == {"token_id": stop}
    assert final.usage["completion_tokens"] == n and whole.startswith(rig.text("b"))
