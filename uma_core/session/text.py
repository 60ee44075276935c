"""Turns token bytes into text that may be sent: complete characters, with possible stop strings held back."""

from __future__ import annotations

import codecs

from uma_core.session.search import State, beginning, search


class TextStream:
    """Assembles one session's output. `push` returns the text that is ready and keeps the rest.

    Two things are held back: bytes of an incomplete UTF-8 character, and text that could be the beginning of a
    stop string. Invalid bytes become U+FFFD, as browsers show them (Unicode 3.9, maximal subparts).
    """

    __slots__ = ("_decoder", "_held", "_state", "_stops", "stopped_by")

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(s for s in stops if s)
        self._state = beginning(self._stops) if self._stops else None
        self._held = ""
        self.stopped_by = ""

    @property
    def is_stopped(self) -> bool:
        return bool(self.stopped_by)

    def push(self, data: bytes) -> str:
        text = data.decode("ascii") if data.isascii() and not self._decoder.buffer else self._decoder.decode(data)
        return self._filter(text, self._state) if self._state is not None else text

    def finish(self) -> str:
        """Return the rest of the text at the end: an incomplete character becomes U+FFFD."""
        if self.is_stopped:
            return ""
        text = self._held + self._decoder.decode(b"", True)
        self._held = ""
        return text

    def _filter(self, piece: str, state: State) -> str:
        if self.is_stopped:
            return ""
        text, n_before = self._held + piece, len(self._held)
        self._state, found = search(state, piece)
        if found is not None:
            self.stopped_by = self._stops[found.which]
            self._held = ""
            return text[: n_before + found.at]
        n_ready = len(text) - self._state.n_pending
        self._held = text[n_ready:]
        return text[:n_ready]
