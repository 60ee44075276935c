"""llama.cpp's log as lines of our own: whole, not too many, and quiet where failures are expected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from uma_core.engine.llama import log as module
from uma_core.engine.llama.log import ERROR, MAX_LOUD, N_KEPT, PIECE_BYTES, WARN, Tap

INFO = 2
Say = Callable[..., None]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Say:
    """Let llama.cpp log pieces of a level."""
    caplog.set_level(logging.DEBUG)
    pieces: list[tuple[int, str]] = []

    def taken() -> Iterator[tuple[int, str]]:
        while pieces:
            yield pieces.pop(0)

    monkeypatch.setattr(module, "take_log", taken)
    return lambda level, *texts: pieces.extend((level, text) for text in texts)


def test_pieces_become_lines_and_progress_dots_none(say: Say, caplog: pytest.LogCaptureFixture) -> None:
    tap = Tap()
    say(INFO, "one ", "line\n", "....", "...\n", "two\n", "unfinished")
    assert tap.pump() == 2
    assert [record.message for record in caplog.records] == ["one line", "two"]
    say(INFO, " until now\n")
    assert [line.text for line in tap.since(2)] == ["unfinished until now"]


def test_a_line_that_was_cut_ends_there(say: Say) -> None:
    tap = Tap()
    say(INFO, "x" * PIECE_BYTES, "next\n")
    assert [line.text for line in tap.since(0)] == ["x" * PIECE_BYTES, "next"]


def test_warnings_and_errors_are_visible_and_the_rest_is_debug(say: Say, caplog: pytest.LogCaptureFixture) -> None:
    for level in (INFO, WARN, ERROR):
        say(level, f"{level}\n")
    Tap().pump()
    assert [record.levelno for record in caplog.records] == [logging.DEBUG, logging.WARNING, logging.ERROR]


def test_a_storm_is_counted(say: Say, caplog: pytest.LogCaptureFixture) -> None:
    say(WARN, *[f"{i}\n" for i in range(MAX_LOUD + 5)])
    tap = Tap()
    tap.pump()
    assert len(caplog.records) == MAX_LOUD + 1
    assert caplog.records[-1].message == "5 more warnings and errors of llama.cpp"
    say(WARN, "later\n")
    tap.pump()
    assert caplog.records[-1].message == "later"


def test_within_quiet_nothing_is_loud_and_before_and_after_it_is(say: Say, caplog: pytest.LogCaptureFixture) -> None:
    tap = Tap()
    say(ERROR, "before\n")
    with tap.quiet():
        say(ERROR, "inside\n")
    say(ERROR, "after\n")
    tap.pump()
    loud = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert loud == ["before", "after"] and tap.errors(0) == "before; inside"


def test_an_explanation_has_the_first_errors_from_there(say: Say) -> None:
    tap = Tap()
    say(ERROR, "old\n")
    mark = tap.pump()
    say(WARN, "a warning\n")
    say(ERROR, "cause\n", "consequence\n", "gave up\n")
    assert tap.errors(mark) == "cause; consequence"
    assert tap.errors(tap.pump()) == ""


def test_only_the_last_lines_are_kept(say: Say) -> None:
    tap = Tap()
    say(INFO, *[f"{i}\n" for i in range(N_KEPT + 3)])
    lines = tap.since(0)
    assert len(lines) == N_KEPT and (lines[0].text, lines[0].number) == ("3", 3)
