from __future__ import annotations

import io

from native.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def feed(progress: Progress, total: int) -> None:
    for step in range(1, total + 1):
        progress.feed(f"[{step}/{total}] Building CXX object src/f{step}.cpp.o")
    progress.finish()


def test_a_log_gets_a_line_per_tenth() -> None:
    sink = io.StringIO()
    feed(Progress(sink), 200)
    assert len(sink.getvalue().splitlines()) == 11
    assert "[ 200/200] f200.cpp" in sink.getvalue()


def test_a_terminal_gets_every_step_on_one_line() -> None:
    sink = Terminal()
    feed(Progress(sink), 20)
    assert sink.getvalue().count("/20]") == 20
    assert "\n" not in sink.getvalue()


def test_a_note_does_not_land_behind_a_step() -> None:
    sink = Terminal()
    progress = Progress(sink)
    progress.feed("[1/2] a")
    progress.note("done")
    assert sink.getvalue().endswith("\r\x1b[Kuma-serve: done\n")


def test_percentages_of_make_count_too() -> None:
    sink = io.StringIO()
    Progress(sink).feed("[ 50%] Building C object ggml.c.o")
    assert "50/100] ggml.c" in sink.getvalue()


def test_other_output_is_not_shown() -> None:
    sink = io.StringIO()
    Progress(sink).feed("-- Found OpenMP")
    assert sink.getvalue() == ""


def test_a_closed_terminal_does_not_end_the_build() -> None:
    sink = io.StringIO()
    progress = Progress(sink)
    sink.close()
    progress.note("still alive")
    progress.finish()
