"""llama-server's limits on the lines of an answer."""

from __future__ import annotations

import pytest

from uma_gateway.apis.llama.lines import Limits, Lines


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        (["def f():", "\n  a", " = 1\n", "  b\n", "c", "d"], "def f():\n  a = 1\n  b\n"),
        (["a\n", " ", " b\n c"], "a\n  b\n "),
        (["x\n", "\ty\nz"], "x\n\t"),
    ],
)
def test_lines_end_before_one_that_is_indented_less(pieces, told):
    lines = Lines(Limits(2, 0))
    assert "".join([lines.push(piece, 0.0) for piece in pieces]) == told and lines.is_over


def test_time_ends_an_answer_at_the_end_of_a_line():
    lines = Lines(Limits(0, 500))
    for text, now in (("a", 9.0), ("\n", 9.4), ("b", 9.6)):
        assert lines.push(text, now) == text and not lines.is_over
    assert lines.push("c\nd", 9.7) == "c\nd" and lines.is_over


def test_an_answer_that_lines_ended_is_cut_off() -> None:
    lines = Lines(Limits(2, 0))
    assert lines.ended({"reason": "stop"})["reason"] == "stop"
    lines.push("a\nb", 0.0)
    assert lines.push("c", 0.0) == "" and lines.ended({"reason": "cancelled"})["reason"] == "length"


def test_nothing_is_told_after_the_time_has_passed() -> None:
    lines = Lines(Limits(0, 500))
    assert [lines.push(text, now) for text, now in (("a", 0.0), ("\n", 1.0), ("b", 1.1))] == ["a", "\n", ""]


def test_no_limits() -> None:
    assert not Limits.of({}).are_any and not Limits.of({"n_indent": 0, "t_max_predict_ms": -1}).are_any
    assert Limits.of({"t_max_predict_ms": 1}).are_any
