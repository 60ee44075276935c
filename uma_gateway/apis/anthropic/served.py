"""What Anthropic's servers ran earlier in a conversation (code, fetched pages, MCP servers), as calls with results.

Only text is read from a result. What is encrypted or a picture is left out.
"""

from __future__ import annotations

from typing import Any

import orjson

CALLS = ("server_tool_use", "mcp_tool_use")
RESULT = "_tool_result"  # the end of the types of results
NO_TEXT = "(no text)"
# fields of a result, and of what it holds, that are texts or hold texts
_FIELDS = ("title", "url", "text", "stdout", "stderr", "lines", "content", "source", "data")


def call_and_result(call: dict[str, Any], result: dict[str, Any], call_id: str, said: dict[str, Any]) -> list[Any]:
    """Return a call and its result as two messages. `call`: its block; {} if the client has left it out. `said`: the
    assistant's message up to the call.
    """
    name = str(call.get("name") or result["type"].removesuffix(RESULT))
    arguments = orjson.dumps(call.get("input") or {}).decode()
    calls = [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]
    told = _text(result.get("content")).strip() or NO_TEXT
    content = f"Error: {told}" if result.get("is_error") else told
    return [{**said, "tool_calls": calls}, {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}]


def _text(value: Any) -> str:
    """Return the texts in a result, one after another."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text, value)))
    if not isinstance(value, dict) or value.get("type") == "base64":
        return ""
    if value.get("error_code"):
        return f"Error: {value['error_code']}"
    return "\n".join(filter(None, (_text(value.get(name)) for name in _FIELDS)))
