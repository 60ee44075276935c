"""Chat templates, tool calls and reasoning: turns messages into a prompt and a constraint, and the model's text into
messages.

`Templates.apply` turns a conversation into `Applied`; `Parser` turns the answer's text into `Diff`s. Both are
llama.cpp's own chat code, in one shared object (native/chat).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uma_gateway.chat.diff import Diff, Message, ToolCall
    from uma_gateway.chat.errors import ChatCode, ChatError
    from uma_gateway.chat.parser import Parser
    from uma_gateway.chat.templates import AnswerFormat, Applied, Templates, Thinking

__all__ = [
    "AnswerFormat",
    "Applied",
    "ChatCode",
    "ChatError",
    "Diff",
    "Message",
    "Parser",
    "Templates",
    "Thinking",
    "ToolCall",
]
_MODULES = {
    "diff": ("Diff", "Message", "ToolCall"),
    "errors": ("ChatCode", "ChatError"),
    "parser": ("Parser",),
    "templates": ("AnswerFormat", "Applied", "Templates", "Thinking"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a module when a name in it is asked for. The process that tries a template (check.py) needs few of them,
    and all of them take longer to import than most templates to try.
    """
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
