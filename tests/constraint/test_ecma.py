"""ECMA-262's regular expressions are translated for Rust."""

import re

import pytest

from uma_core.constraint.ecma import ForeignError, to_rust


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z]+$",
        r"\d{3}-\w*",
        r"^--[a]--$",
        r"a && b",
        r"(?<name>x)(?:y)",
        r"[a\]b]",
        r"[^\]]",
        r"\/\.\-",
        r"[:/]",
        r"[-a]",
        r"\p{L}",
    ],
)
def test_what_means_the_same_stays(pattern):
    assert to_rust(pattern) == pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "[[:alpha:]]",
        "[a&&b]",
        "[a--b]",
        "[a~~b]",
        r"\A",
        r"x\z",
        r"\<word",
        "(?i)a",
        "(?P<n>a)",
        "(?x: a)",
        "[]a]",
        "[^]",
        "[[a]]",
        r"\01",
    ],
)
def test_what_would_mean_something_else_is_refused(pattern):
    with pytest.raises(ForeignError) as caught:
        to_rust(pattern)
    assert str(caught.value) in pattern


def test_space_is_what_ecma_says_and_a_dot_is_no_line_end():
    space = to_rust(r"\s")
    assert r"\u{feff}" in space and "85" not in space
    assert to_rust(r"[\s,]") == space[:-1] + ",]"
    assert to_rust(".") == r"[^\n\r\u{2028}\u{2029}]"
    assert to_rust("[.]") == "[.]"
    assert to_rust(r"\cJ\0") == r"\x0a\x00"


def test_every_text_comes_to_an_end():
    for length in range(1, 5):
        for number in range(6**length):
            text = "".join(r"[]\^.("[number // 6**i % 6] for i in range(length))
            try:
                re.escape(to_rust(text))
            except ForeignError:
                continue
