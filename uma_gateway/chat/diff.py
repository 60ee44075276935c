"""The pieces in which a parser reports an answer, and the message that they add up to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson


class Diff(NamedTuple):
    """What a piece of text added to a message. A tool call begins with its name, and its arguments follow in pieces."""

    content: str = ""
    reasoning: str = ""
    tool: int = -1  # number of the tool call; -1: none
    tool_id: str = ""
    tool_name: str = ""
    tool_arguments: str = ""


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: str = ""
    index: int = 0  # place in its message

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are complete: the answer may have ended in the middle of them, or still be coming."""
        # a cheap test first, because this runs for every piece and most are incomplete
        if not self.arguments.rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False

    @property
    def values(self) -> dict[str, Any]:
        """Return the arguments as an object. If their text is no JSON object, because the answer was cut off, it is the
        value of an empty name.
        """
        try:
            values = orjson.loads(self.arguments or "{}")
        except ValueError:
            values = None
        return values if isinstance(values, dict) else {"": self.arguments}


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
