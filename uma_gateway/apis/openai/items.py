"""The items of the Responses API: conversations arrive as items, and answers are returned as items."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from uma_gateway.body import array, text
from uma_gateway.chat.diff import Message
from uma_gateway.errors import invalid, unsupported
from uma_gateway.turns import plain_content

Item = dict[str, Any]

ADDED_TOOLS = "additional_tools"  # the type of an item that adds tools to a conversation
_TEXT_PARTS = ("input_text", "output_text", "text")

_PREFIXES = {  # of ids, by the item's type
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


def new_item_id(kind: str) -> str:
    """Return an id for an item of this type."""
    return new_id(_PREFIXES.get(kind, "item"))


# ---- in


def read_input(value: Any, is_continued: bool = False) -> list[Item]:
    """Return the `input` of a request as items; empty is allowed if it continues a response. Raises: GatewayError."""
    if is_continued and value in (None, []):
        return []
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise invalid("`input` is required: a string, or an array of items", "input")
    for i, item in enumerate(value):
        if not isinstance(item, dict):
            raise invalid(f"`input[{i}]` must be an object", f"input[{i}]")
    return value


def reference(item: Item, path: str) -> str | None:
    """Return the id if this item is a reference to another one, else None. A reference may have no type.

    Raises: GatewayError.
    """
    is_one = item.get("type") == "item_reference" or (item.get("type") is None and item.keys() <= {"type", "id"})
    return _text(item, "id", path) if is_one else None


def all_kept(given: list[Item], is_taken: Callable[[str], bool]) -> list[Item]:
    """Return the items of a request as they are listed later. An item that came back gets an id of its own: clients ask
    for the page after an id, and would ask for ever if two items had it. `is_taken`: whether an earlier item has an id.
    """
    made: dict[str, Item] = {}
    for item in map(kept, given):
        if item["id"] in made or is_taken(item["id"]):
            item["id"] = new_item_id(item["type"])
        made[item["id"]] = item
    return list(made.values())


def kept(item: Item) -> Item:
    """Return an item of a request as it is listed later: with all fields that OpenAI's types require, and its content
    in parts.
    """
    kind = item.get("type") or "message"
    given = {name: value for name, value in item.items() if value is not None}
    made = {"id": new_item_id(kind), "type": kind, **given}
    if kind == "reasoning":
        return {"summary": [], **made}
    if kind not in _PREFIXES:
        return made
    made.setdefault("status", "completed")
    if kind != "message":
        return made
    content = item.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    is_own = item.get("role") == "assistant"
    return {**made, "content": [_kept_part(part, is_own) for part in parts] if isinstance(parts, list) else parts}


def _kept_part(part: Item, is_own: bool) -> Item:
    """`is_own`: the assistant said it."""
    if part.get("type") not in _TEXT_PARTS:
        return part
    return {**text_part(""), **part, "type": "output_text"} if is_own else {**part, "type": "input_text"}


def to_messages(items: list[Item], name: str = "input") -> list[Item]:
    """Return items as chat messages. The assistant's thoughts, texts and calls in a row are one message. `name`: the
    field that contained the items.

    Raises: GatewayError.
    """
    messages: list[Item] = []
    for i, item in enumerate(items):
        path = f"{name}[{i}]"
        kind = item.get("type") or ("message" if "role" in item else None)
        if not isinstance(item.get("id"), str | None):
            raise invalid(f"`{path}.id` must be a string", f"{path}.id")
        if kind == "message":
            _add_message(messages, item, path)
        elif kind == "function_call":
            _add_call(messages, item, path, _text(item, "arguments", path))
        elif kind == "custom_tool_call":  # from another server's conversation; its input may be any text
            _add_call(messages, item, path, orjson.dumps({"input": _text(item, "input", path)}).decode())
        elif kind in ("function_call_output", "custom_tool_call_output"):
            content = _content(item.get("output"), f"{path}.output")
            messages.append({"role": "tool", "tool_call_id": _text(item, "call_id", path), "content": content})
        elif kind == "reasoning":
            thought = _thought(item)
            if thought:
                message = _assistant(messages)
                message["reasoning_content"] = message.get("reasoning_content", "") + thought
        elif kind in ("web_search_call", ADDED_TOOLS):
            pass  # a search does not contain the results: only OpenAI's servers showed them to the model
        else:
            raise invalid(f"`{path}.type` {str(kind)[:50]!r} is not supported", f"{path}.type")
    return messages


def _add_call(messages: list[Item], item: Item, path: str, arguments: str) -> None:
    name = shown_name(text(item, "namespace") or "", _text(item, "name", path))
    call = {"name": name, "arguments": arguments}
    _assistant(messages).setdefault("tool_calls", []).append(
        {"id": _text(item, "call_id", path), "type": "function", "function": call}
    )


def _thought(item: Item) -> str:
    """Return the text of a thought. A thought that another server encrypted, and its summary, are useless to this
    model.
    """
    carried = item.get("encrypted_content")
    if isinstance(carried, str) and carried.startswith(_CARRIED):
        return carried.removeprefix(_CARRIED)
    parts = item.get("content") or (item.get("summary") if carried is None else None)
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "".join(text for text in texts if isinstance(text, str))


def _add_message(messages: list[Item], item: Item, path: str) -> None:
    role = _text(item, "role", path)
    if role not in ("user", "system", "developer", "assistant"):
        raise invalid(f"`{path}.role` must be user, system, developer or assistant", f"{path}.role")
    content = _content(item.get("content"), f"{path}.content")
    if role != "assistant":
        messages.append({"role": role, "content": content})
        return
    message = _assistant(messages)
    message["content"] += plain_content(content)


def _assistant(messages: list[Item]) -> Item:
    """Return the assistant's message that the next of its items belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _content(value: Any, path: str) -> str | list[Item]:
    """Return a text, or several in the chat API's form; the template decides how to join them."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(f"`{path}` must be a string or an array of parts", path)
    texts = [_part(part, path) for part in value]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _part(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind in ("input_image", "input_file", "input_audio"):
        raise unsupported(f"`{path}`: parts of type {kind!r} are not supported: the daemon serves text", path)
    raise invalid(f"`{path}`: every part must be an object with a known `type` and its text", path)


def _text(item: Item, name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"`{path}.{name}` must be a string", f"{path}.{name}")
    return value


def added_tools(items: list[Item]) -> Iterator[tuple[list[Any], str]]:
    """Yield the tools that items of a conversation add to those of the request, each with their path for errors.

    Raises: GatewayError.
    """
    for i, item in enumerate(items):
        if item.get("type") == ADDED_TOOLS:
            yield array(item, "tools"), f"input[{i}].tools"


def read_tools(tools: list[Any], name: str = "tools") -> list[Item]:
    """Return function tools in the chat API's form; custom tools become functions of one text.

    A tool in a namespace gets the namespace's name before its own. Tools that run on OpenAI's servers are left out,
    because clients send them by habit. Custom tools whose text has a grammar are left out too: inside a function's
    arguments the grammar could not be enforced. `name`: the field that contained the tools.
    """
    made = []
    for tool, space, path in in_spaces(tools, name):
        if tool["type"] == "function":
            told = tool.get("function") or {name: value for name, value in tool.items() if name != "type"}
        elif is_custom(tool):
            told = {"name": tool.get("name"), "description": tool.get("description") or "", "parameters": _ONE_TEXT}
        else:
            continue
        if not isinstance(told, dict) or not isinstance(told.get("name"), str) or not told["name"]:
            raise invalid(f"`{path}.name` is required", f"{path}.name")
        if not isinstance(told.get("parameters", {}), (dict, type(None))):
            raise invalid(f"`{path}.parameters` must be a JSON schema", f"{path}.parameters")
        made.append({"type": "function", "function": {**told, "name": shown_name(space, told["name"])}})
    return made


def in_spaces(tools: list[Any], name: str = "tools") -> Iterator[tuple[Item, str, str]]:
    """Yield the tools, including those in namespaces, each with its namespace ("": none) and its path for errors.

    Raises: GatewayError.
    """
    for i, tool in enumerate(tools):
        path = f"{name}[{i}]"
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            raise invalid(f"`{path}.type` is required", f"{path}.type")
        if tool["type"] != "namespace":
            yield tool, "", path
            continue
        space = _text(tool, "name", path)
        for j, inner in enumerate(array(tool, "tools")):
            if not isinstance(inner, dict) or inner.get("type") not in ("function", "custom"):
                raise invalid(f"`{path}.tools[{j}].type` must be function or custom", f"{path}.tools")
            yield inner, space, f"{path}.tools[{j}]"


def shown_name(space: str, name: str) -> str:
    """Return the model's name for a tool: the chat API has no namespaces."""
    return f"{space}__{name}" if space else name


_ONE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def is_custom(tool: Any) -> bool:
    """Whether it is a custom tool that the model may call."""
    form = tool.get("format") if isinstance(tool, dict) and tool.get("type") == "custom" else False
    return form is None or (isinstance(form, dict) and form.get("type") == "text")


# ---- out


_CARRIED = "unencrypted:"  # begins the `encrypted_content` that we wrote


@dataclass(frozen=True)
class Thoughts:
    """How a request wants thoughts to be reported."""

    is_summary: bool = False  # as the summary: many clients read nothing else
    is_carried: bool = False  # in `encrypted_content` too; clients send it back if responses are not kept

    def part(self, text: str) -> Item:
        return {"type": "summary_text" if self.is_summary else "reasoning_text", "text": text}

    def item(self, item_id: str, text: str, status: str) -> Item:
        parts = [self.part(text)] if text else []
        return {
            "id": item_id,
            "type": "reasoning",
            "summary": parts if self.is_summary else [],
            "content": [] if self.is_summary else parts,
            "encrypted_content": _CARRIED + text if self.is_carried and text else None,
            "status": status,
        }


def text_part(text: str, logprobs: list[Any] | None = None) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def message_item(item_id: str, parts: list[Item], status: str) -> Item:
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": parts}


def call_item(item_id: str, call_id: str, name: Item, arguments: str, status: str) -> Item:
    """Return the item of a call. `name`: the tool's name, with its namespace."""
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        **name,
        "arguments": arguments,
    }


def custom_item(item_id: str, call_id: str, name: Item, arguments: str) -> Item:
    return {
        "id": item_id,
        "type": "custom_tool_call",
        "call_id": call_id,
        **name,
        "input": input_of(arguments) if arguments else "",
    }


class Names:
    """The names of a request's tools, by the names that the model knows."""

    def __init__(self, tools: list[Any]) -> None:
        self.custom: set[str] = set()  # names of custom tools
        self._told: dict[str, Item] = {}  # tools in a namespace
        for tool, space, _ in in_spaces(tools):
            name = tool.get("name")
            if not isinstance(name, str):
                continue
            if is_custom(tool):
                self.custom.add(shown_name(space, name))
            if space:
                self._told[shown_name(space, name)] = {"name": name, "namespace": space}

    def told(self, name: str) -> Item:
        """Return the fields by which an item names a tool."""
        return self._told.get(name, {"name": name})


def input_of(arguments: str) -> str:
    """Return a custom tool's input from the arguments that the model wrote; all of these if they were cut off."""
    try:
        value = orjson.loads(arguments)["input"]
    except (ValueError, LookupError, TypeError):
        return arguments
    return value if isinstance(value, str) else arguments


def output_items(
    message: Message, status: str, names: Names, thoughts: Thoughts, logprobs: list[Any] | None = None
) -> list[Item]:
    """Return a whole answer as items. `status`: of the last item; the items before it are complete."""
    made = []
    if message.reasoning:
        made.append(thoughts.item(new_item_id("reasoning"), message.reasoning, "completed"))
    if message.content or not (made or message.tool_calls):  # a response without any item confuses clients
        made.append(message_item(new_item_id("message"), [text_part(message.content, logprobs)], "completed"))
    made += [
        custom_item(new_item_id("custom_tool_call"), call.id, names.told(call.name), call.arguments)
        if call.name in names.custom
        else call_item(new_item_id("function_call"), call.id, names.told(call.name), call.arguments, "completed")
        for call in message.tool_calls
    ]
    if "status" in made[-1]:  # a custom tool's call has none
        made[-1]["status"] = status
    return made
