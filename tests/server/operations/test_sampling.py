"""Tokens and texts of a request's sampling fields become ids that the vocabulary has."""

from __future__ import annotations

import math

import pytest

from tests.server.conftest import FakeText
from uma_core.errors import ErrorCode, UmaError
from uma_core.server.operations.sampling import resolve
from uma_core.types import Request, SamplingParams


def biases(text: FakeText, *pairs: tuple[int | str, float]) -> dict[int | str, float]:
    request = resolve(text, Request(id="a", prompt="x", sampling=SamplingParams(logit_bias=pairs)))
    return dict(request.sampling.logit_bias)


def test_a_bias_on_a_text_is_one_on_each_of_its_tokens(fake_text):
    assert biases(fake_text, ("ab", 2.0), (98, 0.5), (99, -math.inf)) == {97: 2.0, 98: 2.5, 99: -math.inf}
    assert biases(fake_text, ("aa", 2.0)) == {97: 2.0}
    assert biases(fake_text, (97, 3.0), (97, -math.inf)) == {97: -math.inf}
    assert fake_text.prepared


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(logit_bias=((256, 1.0),)), "logit_bias"),
        (SamplingParams(stop_token_ids=(1, 256)), "stop_token_ids"),
    ],
)
def test_an_id_that_the_vocabulary_lacks_is_refused(fake_text, params, field):
    with pytest.raises(UmaError, match="from 0 to 255") as caught:
        resolve(fake_text, Request(id="a", prompt="x", sampling=params))
    assert caught.value.error is ErrorCode.BAD_REQUEST and caught.value.detail["field"] == field


def test_a_plain_request_stays_as_it_is(fake_text):
    request = Request(id="a", prompt="x")
    assert resolve(fake_text, request) is request
    assert not fake_text.calls and not fake_text.prepared


def test_preserved_tokens_are_looked_up_and_plain_text_is_none(fake_text):
    request = resolve(fake_text, Request(id="a", prompt="x", preserved_tokens=("A", "plain")))
    assert request.preserved_tokens == (ord("A"),)
