"""The name that was probably meant."""

from __future__ import annotations

import pytest

from uma_core.suggest import LONGEST_NAME, nearest, suggest

KNOWN = ("scheduler.guard_cap", "scheduler.pause_cap", "limits.max_tokens", "temperature", "top_k", "io.port")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("temprature", "temperature"),
        ("topk", "top_k"),
        ("max_tokens", "limits.max_tokens"),
        ("scheduler.max_tokens", "limits.max_tokens"),
        ("scheduler.guard_kap", "scheduler.guard_cap"),
        ("gateway.http.listen.port", "io.port"),
        ("frobnicate", ""),
        ("", ""),
    ],
)
def test_a_typo_and_a_wrong_section_are_found_and_nothing_else(word, name):
    assert nearest(word, KNOWN) == name
    assert suggest(word, KNOWN) == (f" (did you mean '{name}'?)" if name else "")


def test_a_word_that_is_no_name_is_not_compared():
    known = ["x" * (LONGEST_NAME + 1)]
    assert nearest("x" * LONGEST_NAME, known) == known[0]
    assert nearest("x" * (LONGEST_NAME + 1), known) == ""


def test_names_may_come_one_after_another():
    assert nearest("temprature", iter(KNOWN)) == "temperature"
    assert nearest("temprature", ()) == ""
