"""Tokens that an answer may not draw again at the places where they began a banned string."""

from __future__ import annotations

from uma_core.types import TokenId

# An answer may take back WASTE_SHARE times its length limit, and WASTE_LEAST tokens in any case; beyond that its banned
# strings leave it no way to continue. Ordinary lists take back fewer than one token in ten.
WASTE_SHARE = 16
WASTE_LEAST = 1_024


class Bans:
    """A place is the number of tokens before it.

    The bans of a place hold while the tokens before it stay.
    """

    def __init__(self, n_max: int) -> None:
        """`n_max`: most tokens of the answer."""
        self._at: dict[int, list[TokenId]] = {}
        self._n_left = WASTE_SHARE * n_max + WASTE_LEAST
        self.is_set = False  # the sampler knows some

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
