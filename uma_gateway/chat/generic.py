"""Tool calls for models whose template has none: the system message lists the tools, and calls are JSON between two
tags.

Most models have seen this form. The model's own template still writes the prompt; the template here is used only for
the grammar and the parser.
"""

from __future__ import annotations

import json
from typing import Any

START, END = "<tool_call>", "</tool_call>"
GENERATION_PROMPT = "<|im_start|>assistant\n"
THINKING_START, THINKING_END = "<think>", "</think>"

TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls %}
            {%- if (loop.first and message.content) or not loop.first %}
                {{- '\\n' }}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

_INSTRUCTIONS = """\
You may call functions to help with the user's request. These functions exist:
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as JSON between {start} and {end}, in this form:
{start}
{{"name": <name of the function>, "arguments": <object with the arguments>}}
{end}
{when}"""
_RESULT = "<tool_response>"
_WHEN = {
    "auto": "Call a function only if it helps; otherwise answer in plain text.",
    "required": "You must call a function now.",
}


def told(messages: list[dict[str, Any]], tools: list[dict[str, Any]], choice: str) -> list[dict[str, Any]]:
    """Return the conversation as plain text messages, with the tools in its system message."""
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _INSTRUCTIONS.format(tools=described, start=START, end=END, when=_WHEN[choice])
    plain = without_calls(messages)
    if plain and plain[0].get("role") in ("system", "developer"):
        first = {**plain[0], "content": f"{_text(plain[0])}\n\n{text}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def without_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the conversation as plain text messages: its calls and their results become text."""
    return _joined([_plain(message) for message in messages])


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn results into messages of the user, and join neighbouring ones: many templates require the roles to
    alternate.
    """
    joined: list[dict[str, Any]] = []
    for message in messages:
        last = joined[-1] if joined else {}
        if message.get("role") == last.get("role") == "user" and _text(last).startswith(_RESULT):
            joined[-1] = {**last, "content": f"{_text(last)}\n\n{_text(message)}"}
        else:
            joined.append(message)
    return joined


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"{_RESULT}\n{_text(message)}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = [_written(call.get("function", {})) for call in calls]
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(filter(None, [_text(message), *written]))}


def _written(function: dict[str, Any]) -> str:
    arguments = function.get("arguments", "{}")
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function.get("name", ""), ensure_ascii=False)
    return f'{START}\n{{"name": {name}, "arguments": {arguments}}}\n{END}'


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
