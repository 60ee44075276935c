"""Finds the known name nearest to an unknown one, for error messages."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_NAME = 64  # characters: a longer name is no typo, and the cost of comparing is the product of the lengths


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known name that was probably meant, or "". A dotted name is also found by its last part."""
    if len(word) > LONGEST_NAME:
        return ""
    import difflib  # imported here: clients import this module when they start, and rarely need it

    names = list(known)
    leaf = word.rsplit(".", 1)[-1]
    near = [name for name in names if name.rsplit(".", 1)[-1] == leaf] or difflib.get_close_matches(word, names, 1)
    return near[0] if near else ""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean ...?)`, or "" if no known name is close."""
    name = nearest(word, known)
    return f" (did you mean {name!r}?)" if name else ""
