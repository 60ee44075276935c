"""From a conversation, in OpenAI's form, to what the daemon is asked, and to how its answer is read.

Every family turns its requests into a `Chat`; here it becomes the fields of a generate request and a parser per answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from uma_gateway.errors import invalid, unsupported
from uma_gateway.fields import need
from uma_gateway.model import Model
from uma_gateway.parsing import Parser, Plain


@dataclass
class Chat:
    """A conversation and what its answer may be. `tool_choice`: auto, none, required, or an object that names tools, in OpenAI's form."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool | None = None  # None: as the template has it
    json_schema: dict[str, Any] | bool | None = None  # the answer's form; True: any object
    is_strict: bool = False  # a schema that cannot be enforced whole is refused
    grammar: str = ""  # GBNF
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    reasoning_format: str = "auto"
    enable_thinking: bool = True
    reasoning_budget: int | None = None  # tokens; None: any
    template_kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def has_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"


class Prompt(NamedTuple):
    fields: dict[str, Any]  # of the generate request
    stops: list[str]  # further texts that end the answer
    parser: Callable[[], Parser]  # a new one for every answer


async def render(model: Model, chat: Chat) -> Prompt:
    """Raises: GatewayError."""
    check_messages(chat.messages)
    if chat.has_tools:
        raise unsupported("tools are not supported", "tools")
    return Prompt({"messages": [_plain(message) for message in chat.messages], **constraint_fields(model, chat)}, [], Plain)


def constraint_fields(model: Model, chat: Chat) -> dict[str, Any]:
    """The constraint that a chat asks for by itself, without tools. Raises: GatewayError."""
    if chat.json_schema is None and not chat.grammar:
        return {}
    need(model, "constraint", "response_format" if chat.json_schema is not None else "grammar")
    if chat.grammar:
        return {"constraint": {"gbnf": chat.grammar}}
    return {"constraint": {"json": True} if chat.json_schema is True else {"json_schema": chat.json_schema}}


def check_messages(messages: list[Any]) -> None:
    """Raises: GatewayError that names the message at fault."""
    if not messages:
        raise invalid("`messages` must not be empty", "messages")
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        if not isinstance(message, dict):
            raise invalid(f"`{path}` must be an object", path)
        if not isinstance(message.get("role"), str):
            raise invalid(f"`{path}.role` must be a string", f"{path}.role")
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                _check_part(part, f"{path}.content")
        elif content is not None and not isinstance(content, str):
            raise invalid(f"`{path}.content` must be a string or an array of parts", f"{path}.content")
        elif content is None and message["role"] != "assistant":
            raise invalid(f"`{path}.content` is required", f"{path}.content")


def _check_part(part: Any, path: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "refusal"):
        if kind in ("image_url", "input_audio", "file", "video_url"):
            raise unsupported(f"`{path}`: parts of type {kind!r} are not supported: the daemon serves text", path)
        raise invalid(f"`{path}`: every part must be an object with `type` text", path)
    if not isinstance(part.get(kind), str):
        raise invalid(f"`{path}`: a part of type {kind!r} needs its `{kind}`", path)


def plain_content(content: Any) -> str:
    """The text of a message's content, whatever form it has."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)
    return content or ""


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": plain_content(message.get("content"))}
