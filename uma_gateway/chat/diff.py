"""What a parser tells of an answer, piece by piece."""

from __future__ import annotations

from typing import NamedTuple


class Diff(NamedTuple):
    """What a piece of text added to a message. A tool call begins with its name, and its arguments follow in pieces."""

    content: str = ""
    reasoning: str = ""
    tool: int = -1  # number of the tool call; -1: none
    tool_id: str = ""
    tool_name: str = ""
    tool_arguments: str = ""
