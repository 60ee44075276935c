"""From token bytes to text that may be sent: whole characters, stop strings held back."""

from __future__ import annotations

import codecs


class TextStream:
    """Assembles one session's output. `push` returns text that is ready; what may still change is kept.

    Two things are held back: bytes of an unfinished UTF-8 character, and text that could be the beginning
    of a stop string. Invalid bytes become U+FFFD, as browsers show them (Unicode 3.9, maximal subparts).
    """

    __slots__ = ("_decoder", "_held", "_stops", "stopped_by")

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(s for s in stops if s)
        self._held = ""
        self.stopped_by = ""

    @property
    def is_stopped(self) -> bool:
        return bool(self.stopped_by)

    def push(self, data: bytes) -> str:
        text = data.decode("ascii") if data.isascii() and not self._decoder.buffer else self._decoder.decode(data)
        return self._filter(text) if self._stops else text

    def finish(self) -> str:
        """The rest, when no more tokens come: an unfinished character becomes U+FFFD."""
        if self.is_stopped:
            return ""
        text = self._held + self._decoder.decode(b"", True)
        self._held = ""
        return text

    def _filter(self, text: str) -> str:
        if self.is_stopped:
            return ""
        text = self._held + text
        cut, stop = first_of(text, self._stops)
        if stop:
            self.stopped_by = stop
            self._held = ""
            return text[:cut]
        n_keep = max(overlap(text, s) for s in self._stops)
        self._held = text[len(text) - n_keep :]
        return text[: len(text) - n_keep]


def first_of(text: str, strings: tuple[str, ...]) -> tuple[int, str]:
    """Where the first of these strings begins, and which; (-1, "") where none does.

    At one place the first listed counts.
    """
    found = [(at, i) for i, s in enumerate(strings) if (at := text.find(s)) >= 0]
    if not found:
        return -1, ""
    at, i = min(found)
    return at, strings[i]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
