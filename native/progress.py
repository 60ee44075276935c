"""Shows the progress of a long build, even under pip, which hides standard output.

Rules: a terminal gets one line that is rewritten; anything else gets a line per tenth of the steps.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

_STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]\s*(.*)")


def _open_stream() -> TextIO:
    """Prefer the terminal itself: pip shows a build's output only when it fails."""
    if sys.stderr.isatty():
        return sys.stderr
    try:
        # not as the controlling terminal; stays open for the life of the process
        return os.fdopen(os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY), "w")
    except OSError:
        return sys.stderr


class Progress:
    """Prints notes and build steps. All output of build tools goes through `feed`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or _open_stream()
        self._is_terminal = self._stream.isatty()
        self._last_tenth = -1
        self._is_line_open = False

    def note(self, text: str) -> None:
        self._end_line()
        self._write(f"uma-serve: {text}\n")

    def feed(self, line: str) -> None:
        """Take one line of ninja or make output; show it if it is a step."""
        match = _STEP.match(line)
        if not match:
            return
        done, total, what = int(match[1]), int(match[2] or 100), match[3]
        name = what.rpartition(" ")[2].rpartition("/")[2].removesuffix(".o")
        if self._is_terminal:
            self._write(f"\r\x1b[K  [{done:4d}/{total}] {name[:80]}")
            self._is_line_open = True
        elif done * 10 // total > self._last_tenth:
            self._last_tenth = done * 10 // total
            self._write(f"  [{done:4d}/{total}] {name[:80]}\n")

    def finish(self) -> None:
        self._end_line()
        self._last_tenth = -1

    def _end_line(self) -> None:
        if self._is_line_open:
            self._write("\r\x1b[K")
            self._is_line_open = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # a closed terminal must not end the build
