"""The incremental search, compared with Python's `re` on whole texts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.constraint.pattern import N_STEPS_MOST, Pattern, PatternError


def found(source: str, *chunks: str):
    search = Pattern(source).search()
    for i, chunk in enumerate(chunks):
        match = search.push(chunk.encode())
        if match:
            return i, match.begin, match.end
    return None


@pytest.mark.parametrize(
    ("source", "chunks", "expected"),
    [
        ("abc", ["xx", "ab", "cd"], (2, 2, 5)),
        ("a+b", ["aa", "ab"], (1, 0, 4)),
        (r"<\|start\|>assistant(\s+to)", ["<|start|>", "assistant", " to", "="], (2, 18, 21)),
        (r"^\s+to$", [" to", "=x"], (0, 0, 3)),
        (r"^\s+to$", ["x to"], None),
        (r"^\s+to$", [" to="], None),
        (">>>(?!all)", [">>>all"], None),
        (">>>(?!all)", [">>>get"], (0, 0, 3)),
        (">>>(?!all)", [">>", ">"], (1, 0, 3)),
        (r"( to=(?!self<)(?!user<)[^<]*?<\|m\|>)", [" to=", "self", "<|m|>"], None),
        (r"( to=(?!self<)(?!user<)[^<]*?<\|m\|>)", ["x to=", "selfish", "<|m|>"], (2, 1, 17)),
        ("[^<]x", ["<x", "é", "x"], (2, 2, 5)),
        ("é.ü", ["xé", "€ü"], (1, 1, 8)),
        (r"[\d\-]{2,3}z", ["1-", "2z"], (1, 0, 4)),
        ("a{2}|b{3,}c", ["xbb", "bbc"], (1, 1, 6)),
        ("(?:ab|a)c", ["abc"], (0, 0, 3)),
    ],
)
def test_matches(source, chunks, expected):
    assert found(source, *chunks) == expected


@pytest.mark.parametrize("source", [r"(?:.(?!x))*y", r"(?:(?!.*x).)*y", r"(?:a|b(?!x))*y"])
@pytest.mark.parametrize("text", ["ab" * 1500 + "y", "ab" * 700 + "x" + "ab" * 700 + "y"])
def test_look_aheads_do_not_gather(source, text):
    """Each position begins a look-ahead: if all were kept, a long answer would take hours."""
    match = re.search(source.encode(), text.encode())
    assert found(source, *(text[i : i + 7] for i in range(0, len(text), 7)))[1:] == match.span()


@pytest.mark.parametrize(
    "source",
    [
        "",
        "a*",
        "(",
        ")",
        "[",
        "a{",
        "a{2",
        "a{3,2}",
        "a{1000}",
        "*a",
        "(?=a)b",
        "(?<=a)b",
        "(?<n>a)",
        r"\1",
        r"\bx",
        "(((a{50}){50}){50})",
        "[b-a]",
        "\\",
    ],
)
def test_what_is_wrong_or_too_much_is_said(source):
    with pytest.raises(PatternError):
        Pattern(source)


def test_a_pattern_that_hangs_backtracking_costs_its_steps_a_byte():
    pattern = Pattern("^((a?){20}){20}b")
    assert len(pattern.steps) < N_STEPS_MOST
    search = pattern.search()
    for _ in range(50):
        assert search.push(b"aaaa") is None
    assert search.push(b"b") is not None


@pytest.mark.parametrize(
    "source",
    [
        "^((a?){20}){20}b",
        "((a?){20}){20}b",
        "(?:(?!a{1,30}c)a?){20}b",
        "(?:(?!(a?){30}c)a?){20}b",
        "(?:a|(?!b{50})a)+b",
    ],
)
def test_a_token_costs_no_more_than_it_may(source):
    """The compute thread does this work, and the next token of every stream waits for it."""
    search = Pattern(source).search()
    for _ in range(60):  # 480 bytes: an unfinished match of the first two reaches back 400
        search.push(b"aaaaaaaa")
        assert search.n_left > -N_STEPS_MOST


def test_what_costs_too_much_is_given_up_and_others_are_found():
    search = Pattern("((a?){20}){20}b|xyz").search()
    assert search.push(b"aaab", 1000) is None
    assert search.push(b"xyz") == (4, 7)


ATOMS = st.sampled_from(["a", "b", "ab", "[ab]", "[^a]", ".", "(?:a|b)", "(?:ab)*", "a+", "b?", "a{1,2}"])


@given(st.lists(ATOMS, min_size=1, max_size=5).map("".join), st.lists(st.text("abc", max_size=4), max_size=6))
def test_the_first_match_is_the_one_that_re_finds(source, chunks):
    if re.search(f"(?:{source})", ""):
        return
    text = ""
    search = Pattern(source).search()
    for chunk in chunks:
        text += chunk
        match = search.push(chunk.encode())
        expected = re.search(source, text)
        assert (match is None) == (expected is None)
        if match:
            assert match.begin == expected.start()
            return
