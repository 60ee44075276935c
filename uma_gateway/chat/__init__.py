"""Chat templates, tool calls and reasoning: messages to a prompt and a constraint, the model's text back to messages.

`Templates.apply` turns a conversation into `Applied`, `Parser` turns the answer's text into `Diff`s, `schema_to_grammar`
turns a JSON schema into GBNF. All of it is llama.cpp's own chat code in one shared object (native/chat).
"""

from uma_gateway.chat.errors import ChatCode, ChatError
from uma_gateway.chat.parser import Answer, Diff, Parser, ToolCall
from uma_gateway.chat.schema import schema_to_grammar
from uma_gateway.chat.templates import AnswerFormat, Applied, Templates, Thinking

__all__ = [
    "Answer",
    "AnswerFormat",
    "Applied",
    "ChatCode",
    "ChatError",
    "Diff",
    "Parser",
    "Templates",
    "Thinking",
    "ToolCall",
    "schema_to_grammar",
]
