"""What a request may ask of its answer beyond the likeliest tokens."""

from __future__ import annotations

import math
from typing import Any

from tests.unit.executor.rig import Rig
from uma_core.engine.fake import FakeModel
from uma_core.types import FinishReason, SamplingParams

SHORT = FakeModel(eog_every=3)  # answers end by themselves after a few tokens


def answer(model: FakeModel | None = None, n: int = 40, **fields: Any) -> tuple[str, FinishReason, int]:
    """Text, reason and count of tokens."""
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
