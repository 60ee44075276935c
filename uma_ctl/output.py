"""Writing to a terminal, a pipe or a file. Everything that the commands print goes through here."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress

from uma_ctl.errors import StreamFailed
from uma_ctl.units import printable


class ReaderGone(Exception):
    """Standard output no longer has a reader. (Not BrokenPipeError, which click would turn into exit status 1.)"""


def emit(text: str) -> None:
    """Write to standard output at once. Raises: ReaderGone, StreamFailed."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise StreamFailed(f"cannot write to standard output: {error.strerror}") from None


def line(text: str) -> None:
    """Write one line (or block) to standard output."""
    emit(text + "\n")


def note(text: str) -> None:
    """Write one line to standard error that is not part of the result."""
    if sys.stderr is None:  # it was closed at the start
        return
    with suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class TextSink:
    """Writes pieces of a stream. On a terminal, control characters in the text are dropped."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._ends_line = True

    def write(self, text: str) -> None:
        shown = printable(text) if self._is_terminal else text
        if shown:
            emit(shown)
            self._ends_line = shown.endswith("\n")

    def end_line(self) -> None:
        """Finish the last line, so that the next text starts a new one."""
        if not self._ends_line:
            self.write("\n")


class _Closed(io.TextIOBase):
    """Replaces a standard output that was closed at the start: Python has set it to None."""

    def write(self, text: str) -> int:
        if text:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return 0


def fill_standard_streams() -> None:
    """Replace closed streams: they read as empty, and refuse writes."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the life of the process
    sys.stdout = sys.stdout or _Closed()


def tolerate_any_text() -> None:
    """Accept bytes that are not text from standard input, and replace characters that the terminal cannot show."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def forget_stdout() -> None:
    """Redirect standard output to /dev/null, so that the interpreter's last flush succeeds."""
    if not isinstance(sys.stdout, _Closed):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
