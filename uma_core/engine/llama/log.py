"""llama.cpp's log as lines of Python's logging: warnings and errors are visible, the rest is debug.

Rules: the log belongs to the process, not to one model. Any thread may call anything here.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from uma_core.engine.lib import take_log

log = logging.getLogger("uma_core.engine.llama_cpp")

WARN, ERROR = 3, 4  # ggml_log_level
LEVELS = {WARN: logging.WARNING, ERROR: logging.ERROR}
MAX_LOUD = 20  # warnings and errors per pump; a storm must not push other lines out of our own log
N_KEPT = 1024
N_ERRORS = 2  # the first error says what is wrong; those after the second only say that the caller gave up
PIECE_BYTES = 399  # native/runtime/log.c cuts longer pieces, which then lose their line end


class Line(NamedTuple):
    number: int
    level: int
    text: str


class Tap:
    """Assembles lines from the pieces that llama.cpp logs, passes them on, and keeps the last ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Line] = deque(maxlen=N_KEPT)
        self._n = 0
        self._piece = ""
        self._n_quiet = 0

    def pump(self) -> int:
        """Take the lines that llama.cpp logged since the last call. Returns the number of the next line."""
        with self._lock:
            n_loud = 0
            for level, piece in take_log():
                self._piece += piece
                if piece.endswith("\n") or len(piece.encode()) >= PIECE_BYTES:
                    n_loud += self._end_line(level, n_loud < MAX_LOUD)
            if n_loud > MAX_LOUD:
                log.warning("%d more warnings and errors of llama.cpp", n_loud - MAX_LOUD)
            return self._n

    def _end_line(self, level: int, may_be_loud: bool) -> bool:
        text, self._piece = self._piece.strip(), ""
        if not text.strip(". "):
            return False  # progress dots
        self._kept.append(Line(self._n, level, text))
        self._n += 1
        is_loud = level in LEVELS and not self._n_quiet
        if may_be_loud or not is_loud:
            log.log(LEVELS[level] if is_loud else logging.DEBUG, "%s", text)
        return is_loud

    def since(self, number: int) -> list[Line]:
        """Lines from `number` on, as far as they are kept."""
        self.pump()
        with self._lock:
            return [line for line in self._kept if line.number >= number]

    def errors(self, number: int) -> str:
        """The first errors from line `number` on: llama.cpp's explanation of a failure, beside its return code."""
        return "; ".join([line.text for line in self.since(number) if line.level >= ERROR][:N_ERRORS])

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Log everything inside as debug."""
        self.pump()
        self._n_quiet += 1
        try:
            yield
        finally:
            self.pump()
            self._n_quiet -= 1


tap = Tap()
