"""What clients are told of the tokens, and where an answer ends."""

from __future__ import annotations

from tests.executor.rig import Rig, alone
from uma_core.engine.fake.engine import FakeModel
from uma_core.session.events import Token
from uma_core.types import FinishReason


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
