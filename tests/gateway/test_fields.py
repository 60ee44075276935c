"""Values of a body that are no values of ours."""

from __future__ import annotations

import pytest

from uma_gateway.errors import GatewayError, Kind
from uma_gateway.fields import integer, logit_bias
from uma_gateway.jsons import parse_object


@pytest.mark.parametrize("value", [1e20, 1e308, -1e20, 1 << 64, -(1 << 63) - 1, 0.5, True, "5", float("inf")])
def test_what_is_no_integer_of_64_bits_names_its_field(value):
    with pytest.raises(GatewayError) as caught:
        integer({"max_tokens": value}, "max_tokens")
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID, "max_tokens")


@pytest.mark.parametrize("value", [0, -1, (1 << 64) - 1, -(1 << 63)])
def test_other_integers_pass(value):
    assert integer({"seed": value}, "seed") == value


def test_a_token_of_more_than_64_bits_is_none():
    with pytest.raises(GatewayError) as caught:
        logit_bias({"99999999999999999999": 1})
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID, "logit_bias")
    assert logit_bias({"5": 1, "word": -1}) == [[5, 1], ["word", -1]]


def test_of_a_name_that_appears_twice_the_last_value_counts():
    assert parse_object(b'{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}', 8) == {"a": 3, "b": {"c": 2}}
