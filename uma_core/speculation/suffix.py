"""Texts to search for the suffix of another text, or for their own (native/speculation/suffix.c: a suffix automaton).

A token takes 0.1 to 0.3 us and 150 bytes, whatever the text's length.
"""

from __future__ import annotations

import numpy as np

from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError
from uma_core.session.draft import Agreement
from uma_core.types import TokenId

N_FEED = 1024  # tokens of a long text to add at a time, 0.1 to 0.3 ms: a tick must not wait longer
N_READ_MOST = 64  # most tokens of a continuation to read at once


class SuffixText:
    """A growing text. Owns its memory. Negative tokens are separators: no match crosses one that occurs only once."""

    def __init__(self) -> None:
        """Raises: INSUFFICIENT_MEMORY."""
        made = lib.uma_suffix_new()
        if not made:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for draft lookups")
        self.handle = ffi.gc(made, lib.uma_suffix_free)
        self.n = 0
        self._n_match = ffi.new("int32_t *")
        self._out = ffi.new("llama_token[]", N_READ_MOST)
        self._agreement = ffi.new("uint8_t[]", N_READ_MOST)

    def extend(self, tokens: np.ndarray) -> None:
        """Append (n,) int32. After memory has run out, nothing matches."""
        tokens = np.ascontiguousarray(tokens, np.int32)
        lib.uma_suffix_extend(self.handle, ffi.from_buffer("llama_token *", tokens), len(tokens))
        self.n += len(tokens)

    def match(self) -> tuple[int, int]:
        """Find the longest suffix of the text that occurred before. Returns its length, and the position after its
        latest earlier occurrence.
        """
        position = lib.uma_suffix_match(self.handle, self._n_match)
        return self._n_match[0], position

    def read(self, position: int, n_match: int, n: int) -> tuple[list[TokenId], list[Agreement]]:
        """Return up to n tokens that follow a match of `n_match` tokens, to the next separator or the end; and for each
        token whether the same one followed an earlier occurrence of the match.
        """
        n_most = min(n, N_READ_MOST)
        n_read = lib.uma_suffix_read(self.handle, position, n_match, self._out, self._agreement, n_most)
        return ffi.unpack(self._out, n_read), [Agreement(each) for each in ffi.unpack(self._agreement, n_read)]

    @property
    def n_bytes(self) -> int:
        return int(lib.uma_suffix_bytes(self.handle))


class Cursor:
    """Follows a text that grows token by token, and tells how much of its end occurs in a SuffixText, which may grow
    too.
    """

    def __init__(self, text: SuffixText) -> None:
        self.text = text
        self.position = 0
        self._at = ffi.new("uma_suffix_cursor *")

    @property
    def n_match(self) -> int:
        return int(self._at.n_match)

    def follow(self, token: TokenId) -> None:
        self.position = lib.uma_suffix_follow(self.text.handle, self._at, token)
