"""Fields of a body by their type."""

from __future__ import annotations

import pytest

from uma_gateway.body import integer
from uma_gateway.errors import GatewayError, Kind


@pytest.mark.parametrize("value", [1e20, 1e308, -1e20, 1 << 64, -(1 << 63) - 1, 0.5, True, "5", float("inf")])
def test_what_is_no_integer_of_64_bits_names_its_field(value):
    with pytest.raises(GatewayError) as caught:
        integer({"max_tokens": value}, "max_tokens")
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID, "max_tokens")


@pytest.mark.parametrize("value", [0, -1, (1 << 64) - 1, -(1 << 63)])
def test_other_integers_pass(value):
    assert integer({"seed": value}, "seed") == value
