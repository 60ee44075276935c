"""Chat templates, tool calls and reasoning: turns messages into a prompt and a constraint, and the model's text into
messages.

`Templates.apply` turns a conversation into `Applied`; `Parser` turns the answer's text into `Diff`s. Both are
llama.cpp's own chat code, in one shared object (native/chat).
"""

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
