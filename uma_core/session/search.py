"""Searches for several strings at once in a text that arrives in pieces (Aho and Corasick, CACM 18, 1975).

Rules: pure. A character costs a step or two, no matter how many strings there are. The successors of a state are built
when the text first reaches it, so that long lists do not delay an answer.
"""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """The first string found in the text; of several at the same place, the one listed first."""

    at: int  # characters after the beginning of the last piece; negative: it began in an earlier piece
    which: int


class State:
    """The longest suffix of the text that begins one of the strings. Immutable: to go back, keep an earlier state."""

    __slots__ = ("_next", "_strings", "fallback", "index", "n_matched", "n_pending")

    def __init__(self, n_pending: int, strings: list[tuple[str, int]], fallback: State | None) -> None:
        """`strings`: all strings that begin with that suffix, sorted, with their indices in the list."""
        self.n_pending = n_pending  # characters of that suffix
        self.fallback = fallback  # state of the next shorter suffix; None: this is the state of an empty text
        # the longest string that is complete here, and its index in the list
        self.n_matched: int = fallback.n_matched if fallback is not None else 0
        self.index: int = fallback.index if fallback is not None else -1
        n_complete = 0
        while n_complete < len(strings) and len(strings[n_complete][0]) == n_pending:
            n_complete += 1
        if n_complete:
            self.n_matched, self.index = n_pending, strings[0][1]
        self._strings = strings[n_complete:]
        self._next: dict[str, State] | None = None

    def next(self) -> dict[str, State]:
        """Return the states of longer suffixes, by the character that leads to them."""
        if self._next is None:
            shorter: list[State] = []
            state: State | None = self
            while state is not None and state._next is None:  # a loop, not recursion: there may be as many as strings
                shorter.append(state)
                state = state.fallback
            for state in reversed(shorter):
                state._next = {c: State(state.n_pending + 1, strings, state._after(c)) for c, strings in state._split()}
        assert self._next is not None
        return self._next

    def _after(self, character: str) -> State:
        """Return the fallback of the state that `character` leads to."""
        state = self.fallback
        while state is not None:
            following = state.next().get(character)
            if following is not None:
                return following
            if state.fallback is None:
                return state
            state = state.fallback
        return self

    def _split(self) -> list[tuple[str, list[tuple[str, int]]]]:
        """Return the strings, grouped by their next character."""
        strings, at = self._strings, self.n_pending
        if not strings:
            return []
        if strings[0][0][at] == strings[-1][0][at]:  # the strings are sorted, so all have the same next character
            return [(strings[0][0][at], strings)]
        parts: dict[str, list[tuple[str, int]]] = {}
        for pair in strings:
            parts.setdefault(pair[0][at], []).append(pair)
        return list(parts.items())


def beginning(strings: tuple[str, ...]) -> State:
    """Return the state of an empty text. No string may be empty."""
    return State(0, sorted((string, i) for i, string in enumerate(strings)), None)


def search(state: State, piece: str) -> tuple[State, Found | None]:
    """Return the state after one more piece of the text, and the first string that becomes complete in it."""
    found = None
    for n, character in enumerate(piece, 1):
        following = (state._next or state.next()).get(character)
        while following is None and state.fallback is not None:
            state = state.fallback
            following = (state._next or state.next()).get(character)
        if following is None:
            continue
        state = following
        if state.n_matched and (found is None or (n - state.n_matched, state.index) < found):
            found = Found(n - state.n_matched, state.index)
    return state, found
