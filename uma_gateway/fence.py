"""Takes the Markdown fence off an answer that is JSON.

Beside tools, a constraint lets the model write its JSON between fences, as many models do and some templates demand.
The parser of calls takes such an answer for plain text.
"""

from __future__ import annotations

import re

from uma_gateway.chat.diff import Diff
from uma_gateway.parsing import Parser

_OPENED = re.compile(r"\s*```json\s*")
_CLOSED = re.compile(r"\s*```\s*")


class Unfenced:
    """Reads an answer with another parser. Text that may belong to a fence is reported once it is known not to."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._held = ""
        self._has_begun = False  # the answer's first characters told whether a fence begins it
        self._is_fenced = False

    def feed(self, text: str, is_final: bool = False) -> list[Diff]:
        told = [shown for diff in self._parser.feed(text, is_final) for shown in self._shown(diff)]
        rest = self._rest() if is_final else ""
        return [*told, Diff(rest)] if rest else told

    def _shown(self, diff: Diff) -> list[Diff]:
        if diff.tool >= 0:  # an answer that calls is no JSON
            rest = self._rest()
            return [Diff(rest), diff] if rest else [diff]
        shown = diff._replace(content=self._content(diff.content)) if diff.content else diff
        return [shown] if shown.content or shown.reasoning else []

    def _content(self, text: str) -> str:
        if self._has_begun and not self._is_fenced:
            return text
        self._held += text
        if not self._has_begun:
            self._begin()
        if not self._has_begun:
            return ""
        place = self._may_close() if self._is_fenced else len(self._held)
        shown, self._held = self._held[:place], self._held[place:]
        return shown

    def _begin(self) -> None:
        opened = _OPENED.match(self._held)
        if opened is None:
            self._has_begun = not "```json".startswith(self._held.lstrip())
        elif opened.end() < len(self._held):
            self._has_begun = self._is_fenced = True
            self._held = self._held[opened.end() :]

    def _may_close(self) -> int:
        """Return where the end begins that may be a closing fence."""
        before = self._held.rstrip()
        ticks = len(before) - len(before.rstrip("`"))
        return len(before[: len(before) - min(ticks, 3)].rstrip())

    def _rest(self) -> str:
        """Return the text that was held, unless it is the fence that closes the answer."""
        rest, self._held = self._held, ""
        is_fence = self._is_fenced and _CLOSED.fullmatch(rest)
        self._has_begun, self._is_fenced = True, False
        return "" if is_fence else rest
