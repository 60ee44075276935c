"""Tokens that an answer may not draw again at the places where they began a banned string."""

from __future__ import annotations

from uma_core.types import TokenId

WASTE_SHARE = 16  # an answer may take back so many times what it may have, and
# so many in any case; past that its banned strings leave no way on. Ordinary lists take back less than one in ten
WASTE_LEAST = 1_024


class Bans:
    """A place is the number of tokens before it.

    What was found out about a place holds while the tokens before it stay.
    """

    def __init__(self, n_max: int) -> None:
        """`n_max`: most tokens of the answer."""
        self._at: dict[int, list[TokenId]] = {}
        self._n_left = WASTE_SHARE * n_max + WASTE_LEAST
        self.is_set = False  # the sampler has been told of some

    @property
    def is_spent(self) -> bool:
        return self._n_left < 0

    def add(self, place: int, token: TokenId, n_taken: int, n_pending: int) -> list[TokenId]:
        """All that may not come at this place, where `token` began what was taken back; `n_pending` places before it
        may be come back to.
        """
        self._n_left -= n_taken
        self._at = {p: tokens for p, tokens in self._at.items() if place - n_pending <= p <= place}
        self._at.setdefault(place, []).append(token)
        return self._at[place]
