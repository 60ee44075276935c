"""Searching for several strings piece by piece finds the same as a search through the whole text."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from uma_core.session.search import Found, State, beginning, search

STRINGS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=6).map(tuple)
PIECES = st.lists(st.text("abc", max_size=6), max_size=8)


def first_of(text: str, strings: tuple[str, ...], n_before: int) -> Found | None:
    """Return the first match that is complete only after `n_before` characters."""
    found = [
        (at, i)
        for i, s in enumerate(strings)
        for at in range(len(text))
        if text.startswith(s, at) and at + len(s) > n_before
    ]
    return Found(min(found)[0] - n_before, min(found)[1]) if found else None


def overlap(text: str, string: str) -> int:
    """Return how many characters at the end of the text are the beginning of the string."""
    return next(n for n in range(min(len(text), len(string)), -1, -1) if text.endswith(string[:n]))


@given(PIECES, STRINGS)
def test_it_finds_what_a_search_through_the_whole_text_finds(pieces: list[str], strings: tuple[str, ...]) -> None:
    state, text = beginning(strings), ""
    for piece in pieces:
        state, found = search(state, piece)
        assert found == first_of(text + piece, strings, len(text))
        text += piece
        assert state.n_pending == max(overlap(text, s) for s in strings)


@given(PIECES, PIECES, STRINGS)
def test_an_older_state_goes_on_as_if_nothing_had_followed(
    kept: list[str], dropped: list[str], strings: tuple[str, ...]
) -> None:
    state = beginning(strings)
    for piece in kept:
        state, _ = search(state, piece)
    for piece in dropped:
        search(state, piece)
    assert search(state, "abab")[1] == first_of("".join(kept) + "abab", strings, len("".join(kept)))


def states_of(strings: tuple[str, ...], pieces: list[str]) -> int:
    """Return how many states were made."""
    state = root = beginning(strings)
    for piece in pieces:
        state, _ = search(state, piece)

    def made(state: State) -> int:
        return 1 + sum(made(following) for following in (state._next or {}).values())

    return made(root)


def test_strings_that_a_text_does_not_get_to_cost_nothing() -> None:
    strings = tuple(f"{'b' * 500}{i:03}" for i in range(64))
    assert states_of(strings, ["a"] * 1000) == 2
    assert states_of(strings, ["b"] * 100) <= 102


def test_many_strings_with_the_same_ends_are_no_deeper_than_the_stack() -> None:
    n = 3000
    strings = tuple("a" * i + "bc" for i in range(1, n))
    state, _ = search(beginning(strings), "a" * n)
    state, found = search(state, "bc")
    assert found == Found(1 - n, n - 2)


def test_a_character_costs_a_few_steps_however_many_strings_nearly_match() -> None:
    class Text(str):
        """A text that counts how often it is read."""

        n_read = 0

        def __getitem__(self, at: object) -> str:
            Text.n_read += 1
            return super().__getitem__(at)  # type: ignore[index]

    strings = (Text("a" * 1023 + "!"), *(Text("b" + "a" * 1000 + f"{i:03}") for i in range(63)))
    state, n_most = beginning(strings), 0
    for piece in itertools.repeat("a", 1400):
        before = Text.n_read
        state, _ = search(state, piece)
        n_most = max(n_most, Text.n_read - before)
    assert state.n_pending == 1023 and n_most <= 2 * len(strings)
