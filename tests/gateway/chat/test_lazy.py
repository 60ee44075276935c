"""Attributes that are computed once."""

from __future__ import annotations

from uma_gateway.chat.lazy import lazy


class Squared:
    def __init__(self, n: int) -> None:
        self.n, self.n_made = n, 0

    @lazy
    def value(self) -> int:
        """The square."""
        self.n_made += 1
        return self.n**2


def test_each_object_computes_its_own_value_once() -> None:
    two, three = Squared(2), Squared(3)
    assert [two.value, two.value, three.value] == [4, 4, 9] and two.n_made == three.n_made == 1
    assert vars(Squared)["value"].__doc__ == "The square."
