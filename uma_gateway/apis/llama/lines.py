"""llama-server's limits on the lines of an answer (`n_indent`, `t_max_predict_ms`), which editors set."""

from __future__ import annotations

from typing import Any, NamedTuple

from uma_gateway.body import integer
from uma_gateway.generate import ended
from uma_gateway.link import Event


class Limits(NamedTuple):
    """Limits of an answer in addition to its number of tokens. Both apply from the answer's first new line on."""

    n_indent: int  # number of blanks with which each line but the first begins
    t_max_ms: int  # time since the first token; 0 or less: no limit

    @classmethod
    def of(cls, body: dict[str, Any]) -> Limits:
        return cls(integer(body, "n_indent", 0) or 0, integer(body, "t_max_predict_ms") or 0)

    @property
    def are_any(self) -> bool:
        return self.n_indent > 0 or self.t_max_ms > 0


class Lines:
    """Follows one answer, line by line. `is_over`: a limit was met, and the rest is not sent."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._t_first: float | None = None
        self._n_blanks: int | None = None  # blanks at the line's beginning; None: past it, or on the first line
        self.n_tokens = 0
        self.has_new_line = False
        self.is_over = False

    def push(self, text: str, now: float) -> str:
        """Take one more token's text, and the time when it came. Returns the part of it to be sent."""
        if self.is_over:
            return ""
        self._t_first = now if self._t_first is None else self._t_first
        if self._limits.n_indent:
            text = self._indented(text)
        if "\n" in text:
            self.has_new_line = True
            self.is_over = self.is_over or 0 < self._limits.t_max_ms < (now - self._t_first) * 1e3
        return text

    def _indented(self, text: str) -> str:
        """Return the text up to a line that has too few blanks."""
        for i, character in enumerate(text):
            if self._n_blanks is not None and character in " \t":
                self._n_blanks += 1
            elif self._n_blanks is not None and self._n_blanks < self._limits.n_indent:
                self.is_over = True
                return text[:i]
            else:
                self._n_blanks = 0 if character == "\n" else None
        return text

    def ended(self, eos: Event) -> Event:
        """Return the end of the answer; reason `length` if a limit ended it here. Raises: GatewayError for bad ends."""
        return ended({**eos, "reason": "length"} if self.is_over else eos)
