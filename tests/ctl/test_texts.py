"""Where the inputs of `embed` and `rerank` come from."""

from __future__ import annotations

import io

import click
import pytest

from uma_ctl.texts import inputs_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_arguments_come_before_files() -> None:
    assert inputs_of(["b", "a"], [io.StringIO("x\ny\n"), io.StringIO("z")], False) == ["b", "a", "x\ny\n", "z"]


def test_each_line_is_an_input_except_blank_ones() -> None:
    assert inputs_of(["a\nb"], [io.StringIO("x\n \n\ny")], True) == ["a\nb", "x", "y"]


@pytest.mark.parametrize("inner", ["\u2028", "\u2029", "\x85", "\f", "\v", "\x1c"])
def test_only_a_newline_ends_a_line(inner: str) -> None:
    """As for every other program that counts lines: a vector more than lines would shift all that follow."""
    assert inputs_of([], [io.StringIO(f"one{inner}line\nanother\n")], True) == [f"one{inner}line", "another"]


def test_standard_input_is_read_only_without_arguments_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("piped"))
    assert inputs_of(["a"], [], False) == ["a"]
    assert inputs_of([], [], False) == ["piped"]


@pytest.mark.parametrize(
    ("stdin", "texts", "said"),
    [
        (io.StringIO(""), [], "there is no input"),
        (io.StringIO(""), ["a", ""], "an input is empty"),
        (Terminal(), [], "no texts: give them or --file"),
    ],
)
def test_no_input_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO, texts: list[str], said: str
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(click.UsageError, match=said):
        inputs_of(texts, [], False)
