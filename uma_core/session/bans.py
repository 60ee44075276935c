"""Tokens that must not be drawn again at the places where they began a banned string, or where a grammar that begins
with them refused them.
"""

from __future__ import annotations

from uma_core.types import TokenId

# An answer may take back WASTE_SHARE times its length limit, and at least WASTE_LEAST tokens; beyond that its banned
# strings leave it no way to continue. Ordinary lists take back fewer than one token in ten.
WASTE_SHARE = 16
WASTE_LEAST = 1_024


class Bans:
    """A place is the number of tokens before it. Its bans hold as long as these tokens stay."""

    def __init__(self, n_max: int) -> None:
        """`n_max`: length limit of the answer, in tokens."""
        self._at: dict[int, list[TokenId]] = {}
        self._n_left = WASTE_SHARE * n_max + WASTE_LEAST
        self.is_set = False  # whether the sampler has been given bans

    @property
    def is_spent(self) -> bool:
        return self._n_left < 0

    def add(self, place: int, token: TokenId, n_taken: int, n_pending: int) -> list[TokenId]:
        """Ban `token` at this place, where the tokens that were taken back began. Returns all tokens banned there.

        Bans more than `n_pending` places before it are dropped: the answer cannot return to those places.
        """
        self._n_left -= n_taken
        self._at = {p: tokens for p, tokens in self._at.items() if place - n_pending <= p <= place}
        self._at.setdefault(place, []).append(token)
        return self._at[place]
