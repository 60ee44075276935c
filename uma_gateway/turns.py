"""Reads the messages of a conversation, as clients send them, into the chat library's form. Pure.

Clients write histories in more ways than the library can read: with nulls for absent fields, with refusals as parts,
with the incomplete arguments of a tool call that was cut off. None of that is a reason to refuse the next turn.
"""

from __future__ import annotations

from typing import Any

import orjson

from uma_gateway.errors import invalid, unsupported

Message = dict[str, Any]
# roles that clients and templates use; a template may know more
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "ipython"))
_MERGED = ("user", "assistant", "system")  # roles whose neighbouring messages can be joined into one
_SYSTEM = ("system", "developer")
_TEXTS = ("reasoning_content", "name", "tool_call_id")  # other fields of a message that are texts


def read_messages(messages: list[Any], template: str = "") -> list[Message]:
    """Return the messages in the library's form; the given ones are not changed. `template`: the model's template,
    whose own roles are accepted too.

    Raises: GatewayError that names the message at fault.
    """
    if not messages:
        raise invalid("`messages` must not be empty", "messages")
    made = [_read_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if any("function_call" in message for message in made):
        made = _with_tools(made)
    for i, message in enumerate(made):
        role = message["role"]
        if role not in _ROLES and f"'{role}'" not in template and f'"{role}"' not in template:
            raise invalid(f"`messages[{i}].role` {role[:50]!r} is not known", f"messages[{i}].role")
    return made


def _read_message(message: Any, path: str) -> Message:
    if not isinstance(message, dict):
        raise invalid(f"`{path}` must be an object", path)
    if not isinstance(message.get("role"), str):
        raise invalid(f"`{path}.role` must be a string", f"{path}.role")
    made = {name: value for name, value in message.items() if value is not None}
    if isinstance(made.get("reasoning"), str):  # a thought's name in vLLM, OpenRouter and Ollama's /v1
        made.setdefault("reasoning_content", made.pop("reasoning"))
    content = message.get("content")
    if isinstance(content, list):
        made["content"] = [_read_part(part, f"{path}.content") for part in content]
    elif content is None:
        if message["role"] != "assistant":
            raise invalid(f"`{path}.content` is required", f"{path}.content")
        made["content"] = None
    elif not isinstance(content, str):
        raise invalid(f"`{path}.content` must be a string or an array of parts", f"{path}.content")
    for name in _TEXTS:
        if not isinstance(made.get(name, ""), str):
            raise invalid(f"`{path}.{name}` must be a string", f"{path}.{name}")
    if "tool_calls" in made:
        made["tool_calls"] = _read_calls(made["tool_calls"], f"{path}.tool_calls")
    return made


def _with_tools(messages: list[Message]) -> list[Message]:
    """Return OpenAI's older form, a `function_call` and its result from the role function, as calls of tools."""
    made, call_id = [], ""
    for i, message in enumerate(messages):
        call = message.get("function_call")
        if message["role"] == "assistant" and isinstance(call, dict):
            call_id = f"call_{i}"
            calls = [_read_call({"id": call_id, "type": "function", "function": call})]
            message = {"tool_calls": calls, **{name: message[name] for name in message if name != "function_call"}}
        elif message["role"] == "function" and call_id:
            message = {**message, "role": "tool", "tool_call_id": call_id}
        made.append(message)
    return made


def _read_part(part: Any, path: str) -> Message:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "refusal"):
        if kind in ("image_url", "input_audio", "file", "video_url"):
            raise unsupported(f"`{path}`: parts of type {kind!r} are not supported: the daemon serves text", path)
        raise invalid(f"`{path}`: every part must be an object with `type` text", path)
    if not isinstance(part.get(kind), str):
        raise invalid(f"`{path}`: a part of type {kind!r} needs its `{kind}`", path)
    return {"type": "text", "text": part[kind]}


def _read_calls(calls: Any, path: str) -> list[Any]:
    if not isinstance(calls, list):
        raise invalid(f"`{path}` must be an array", path)
    for i, call in enumerate(calls):
        if not isinstance(call, dict):
            raise invalid(f"`{path}[{i}]` must be an object", f"{path}[{i}]")
        if not isinstance(call.get("id"), str | None):
            raise invalid(f"`{path}[{i}].id` must be a string", f"{path}[{i}].id")
        function = call.get("function")
        if not isinstance(function, dict):
            raise invalid(f"`{path}[{i}].function` must be an object", f"{path}[{i}].function")
        if not isinstance(function.get("name"), str):
            raise invalid(f"`{path}[{i}].function.name` must be a string", f"{path}[{i}].function.name")
    return [_read_call(call) for call in calls]


def _read_call(call: dict[str, Any]) -> dict[str, Any]:
    """Read a call of an earlier answer. The library refuses arguments that are not JSON, but an answer may have been
    cut off in the middle of them; their text is then wrapped in JSON.
    """
    function = call["function"]
    # the later pieces of a streamed call have no type, and clients that join the pieces may lose it
    made = {"type": "function"} | {name: value for name, value in call.items() if value is not None}
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = "{}"
    elif isinstance(arguments, str) and not _is_json(arguments):
        arguments = orjson.dumps({"": arguments}).decode()
    made["function"] = {**function, "arguments": arguments}
    return made


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def with_one_head(messages: list[Message]) -> list[Message]:
    """Join the system and developer messages with which a conversation begins, as Codex's do: templates that read only
    the first message as one ignore the next, or refuse it.
    """
    n = next((i for i, message in enumerate(messages) if message["role"] not in _SYSTEM), len(messages))
    if n < 2:
        return messages
    texts = filter(None, (plain_content(message.get("content")) for message in messages[:n]))
    roles = {message["role"] for message in messages[:n]}
    role = roles.pop() if len(roles) == 1 else "system"
    return [{**messages[0], "role": role, "content": "\n\n".join(texts)}, *messages[n:]]


def system_texts(messages: list[Message]) -> list[str]:
    """Return the texts of system and developer messages: those of parts each by itself, because templates join them."""
    contents = [message.get("content") for message in messages if message["role"] in _SYSTEM]
    return [plain_content([part]) for content in contents if isinstance(content, list) for part in content] + [
        content for content in contents if isinstance(content, str)
    ]


def with_one_system(messages: list[Message]) -> list[Message]:
    """Let the user say what a system or developer message says later in a conversation: for templates that know such a
    message only at the beginning.
    """
    return [
        {**message, "role": "user"} if i and message["role"] in _SYSTEM else message
        for i, message in enumerate(messages)
    ]


def merged(messages: list[Message]) -> list[Message]:
    """Join neighbouring messages of one role: for templates that insist on alternating turns of user and assistant."""
    made: list[Message] = []
    for message in messages:
        if not made or message["role"] != made[-1]["role"] or message["role"] not in _MERGED:
            made.append(message)
            continue
        before = made[-1]
        texts = [text for text in (plain_content(before.get("content")), plain_content(message.get("content"))) if text]
        made[-1] = {**before, **message, "content": "\n\n".join(texts) if texts else None}
        calls = [*before.get("tool_calls", ()), *message.get("tool_calls", ())]
        if calls:
            made[-1]["tool_calls"] = calls
    return made


def plain_content(content: Any) -> str:
    """Return the text of a message's content, whatever form it has."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)
    return content or ""
