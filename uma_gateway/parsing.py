"""From an answer's text to the parts of a message: content, reasoning, tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from uma_gateway.chat.diff import Diff


class Parser(Protocol):
    """Reads one answer."""

    def feed(self, text: str, is_final: bool = False) -> list[Diff]: ...


class Plain:
    """Text is content."""

    def feed(self, text: str, is_final: bool = False) -> list[Diff]:
        return [Diff(content=text)] if text else []


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: str = ""
    index: int = 0  # in its message


@dataclass
class Message:
    """An answer so far: diffs added up."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, diff: Diff) -> None:
        self.content += diff.content
        self.reasoning += diff.reasoning
        if diff.tool >= 0:
            while len(self.tool_calls) <= diff.tool:
                self.tool_calls.append(ToolCall("", "", index=len(self.tool_calls)))
            call = self.tool_calls[diff.tool]
            call.id = diff.tool_id or call.id
            call.name = diff.tool_name or call.name
            call.arguments += diff.tool_arguments


def whole(parser: Parser, text: str) -> Message:
    """Read an answer that has ended."""
    message = Message()
    for diff in parser.feed(text, is_final=True):
        message.add(diff)
    return message
