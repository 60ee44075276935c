"""Splits an answer's text into the parts of a message: content, reasoning, tool calls."""

from __future__ import annotations

from typing import Protocol

from uma_gateway.chat.diff import Diff, Message


class Parser(Protocol):
    """Reads one answer."""

    def feed(self, text: str, is_final: bool = False) -> list[Diff]: ...


class Plain:
    """All text is content."""

    def feed(self, text: str, is_final: bool = False) -> list[Diff]:
        return [Diff(content=text)] if text else []


def whole(parser: Parser, text: str) -> Message:
    """Read an answer that has ended."""
    message = Message()
    for diff in parser.feed(text, is_final=True):
        message.add(diff)
    return message
