"""Parses Anthropic's requests into our types: blocks become messages in OpenAI's form.

Rules: a field that would change the answer is refused and never dropped. The model does not see tools that Anthropic's
own servers run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from uma_gateway.apis.anthropic.client_tools import TOOLS
from uma_gateway.apis.anthropic.served import CALLS, RESULT, call_and_result
from uma_gateway.asking import Ask
from uma_gateway.body import array, boolean, integer, table, text
from uma_gateway.errors import GatewayError, Kind, invalid, unsupported
from uma_gateway.prompting import Chat

# Claude Code begins its system prompt with a line that differs in every request, which would keep cached prompts from
# matching
_BILLING = re.compile(r"\A(?:\s*x-anthropic-[a-z-]+:[^\n]*(?:\n|\Z))+")
# Blocks that only Anthropic's servers or another model can read, from a conversation that began elsewhere: thoughts of
# that model, and what the servers' searches found. The text after a search contains it.
_UNREADABLE = ("redacted_thinking", "web_search_tool_result", "tool_search_tool_result")
_TOOL_CHANGES = ("tool_addition", "tool_removal")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def check_answer(body: dict[str, Any]) -> None:
    """Check the fields that only a request for an answer has. Ranges are narrower than in other APIs. Raises:
    GatewayError.
    """
    max_tokens = integer(body, "max_tokens")
    if max_tokens is None:
        raise invalid("max_tokens: Field required", "max_tokens")
    if max_tokens < 1:
        raise invalid("max_tokens: must be at least 1", "max_tokens")
    temperature = body.get("temperature")
    if isinstance(temperature, (int, float)) and not 0 <= temperature <= 1:
        raise invalid("temperature: must be from 0 to 1", "temperature")
    if body.get("compaction") is not None:  # not in `read_request`: counting tokens ignores the field
        raise unsupported("compaction: is not supported: ask for a summary as for any answer", "compaction")


def read_request(body: dict[str, Any]) -> Ask:
    """Read a request. Raises: GatewayError."""
    messages = array(body, "messages")
    if not messages:
        raise invalid("messages: at least one message is required", "messages")
    if array(body, "mcp_servers"):
        raise unsupported("mcp_servers: are not supported: Anthropic's servers ask them", "mcp_servers")
    if body.get("container") is not None:
        raise unsupported("container: is not supported: Anthropic's servers run it", "container")
    if body.get("thread") is not None:
        raise _unthreaded()
    chat = Chat([*_system(body.get("system")), *_messages(messages)])
    chat.tools, names = _tools(array(body, "tools"), messages)
    _read_choice(table(body, "tool_choice"), chat, names)
    _read_thinking(body, chat, messages)
    _read_format(body, chat)
    last = chat.messages[-1]
    if last["role"] == "assistant":
        if last.get("tool_calls"):
            raise invalid("messages: the last one must not call tools: their results have to follow it", "messages")
        chat.continue_final_message, chat.add_generation_prompt = True, False
    return Ask(chat, is_stream=boolean(body, "stream"))


def _unthreaded() -> GatewayError:
    """Return the error for `thread`. Anthropic's client recognises its wording and code and then sends whole
    conversations: its `tool_runner` begins with a thread, and continues without one.
    """
    told = "thread: conversations are not kept here: send the whole one, without `thread`"
    details = {"error_code": "thread_unsupported_request"}
    return GatewayError(Kind.INVALID, told, "thread", details["error_code"], extra={"details": details})


# ---- messages


def _system(given: Any) -> list[dict[str, Any]]:
    if given is None:
        return []
    texts = [given] if isinstance(given, str) else _texts(given, "system")
    kept = [left for left in (_BILLING.sub("", item) for item in texts) if left.strip()]
    return [{"role": "system", "content": "\n\n".join(kept)}] if kept else []


def _messages(given: list[Any]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # tools that were called, by the ids of the calls
    users = [i for i, message in enumerate(given) if isinstance(message, dict) and message.get("role") == "user"]
    for i, message in enumerate(given):
        path = f"messages.{i}"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise invalid(f"{path}.role: must be user or assistant", f"{path}.role")
        content = message.get("content")
        if role == "system":
            told = _told(message.get("content", []), f"{path}.content")
            if not _is_over(message, bool(users) and i < users[-1], path):
                made += told
        elif isinstance(content, str):
            made.append({"role": role, "content": content})
        elif not isinstance(content, list):
            raise invalid(f"{path}.content: must be a string or an array of blocks", f"{path}.content")
        elif role == "assistant":
            made += _assistant(content, f"{path}.content", names)
        else:
            made += _user(content, f"{path}.content", names)
    if not made:
        raise invalid("messages: at least one message has to say something", "messages")
    return made


def _told(content: Any, path: str) -> list[dict[str, Any]]:
    """Return a system message from the middle of a conversation, without its blocks that add or remove tools. Nothing
    may be left.
    """
    texts = [content] if isinstance(content, str) else _texts(content, path, _TOOL_CHANGES)
    return [{"role": "system", "content": "\n\n".join(texts)}] if any(texts) else []


def _is_over(message: dict[str, Any], has_later: bool, path: str) -> bool:
    """Whether a system message was meant for a turn before the last one. `has_later`: a message of the user
    follows it.
    """
    clear_at = message.get("clear_at")
    if clear_at not in (None, "never", "next_user_message"):
        raise invalid(f"{path}.clear_at: must be never or next_user_message", f"{path}.clear_at")
    return clear_at == "next_user_message" and has_later


def _assistant(blocks: list[Any], path: str, names: dict[str, str]) -> list[dict[str, Any]]:
    """Return an assistant's message. A call that Anthropic's servers ran ends it, and after the result a new one
    begins.
    """
    made: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    served: dict[str, dict[str, Any]] = {}  # the servers' calls by their ids
    for i, block in enumerate(blocks):
        kind = _kind(block, f"{path}.{i}")
        if kind == "text":
            texts.append(_string(block, "text", f"{path}.{i}"))
        elif kind == "thinking":
            thoughts.append(_string(block, "thinking", f"{path}.{i}"))
        elif kind == "tool_use":
            call_id, name = _string(block, "id", f"{path}.{i}"), _string(block, "name", f"{path}.{i}")
            if not isinstance(block.get("input", {}), dict):
                raise invalid(f"{path}.{i}.input: must be an object", path)
            names[call_id] = name
            arguments = orjson.dumps(block.get("input", {})).decode()
            calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
        elif kind in CALLS:
            served[_string(block, "id", f"{path}.{i}")] = block
        elif kind.endswith(RESULT) and kind not in _UNREADABLE:
            call_id = _string(block, "tool_use_id", f"{path}.{i}")
            made += call_and_result(served.get(call_id, {}), block, call_id, _said(texts, thoughts))
            texts, thoughts = [], []
        elif kind not in _UNREADABLE:
            raise unsupported(f"{path}.{i}: blocks of type {kind[:50]} are not supported", path)
    if calls:
        return [*made, {**_said(texts, thoughts), "tool_calls": calls}]
    return [*made, _said(texts, thoughts)] if texts or thoughts or not made else made


def _said(texts: list[str], thoughts: list[str]) -> dict[str, Any]:
    thought = {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    return {"role": "assistant", "content": "".join(texts), **thought}


def _user(blocks: list[Any], path: str, names: dict[str, str]) -> list[dict[str, Any]]:
    """Return a user's message. Results of tools become messages of their own, before the user's text."""
    results: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        if _kind(block, f"{path}.{i}") != "tool_result":
            continue
        call_id = _string(block, "tool_use_id", f"{path}.{i}")
        if call_id not in names:
            raise invalid(f"{path}.{i}.tool_use_id: no call before it has the id {call_id[:100]}", path)
        result = _result(block.get("content"), f"{path}.{i}.content")
        content = f"Error: {result}" if block.get("is_error") else result
        results.append({"role": "tool", "tool_call_id": call_id, "name": names[call_id], "content": content})
    texts = _texts(blocks, path, ("tool_result",))
    return [*results, {"role": "user", "content": "\n\n".join(texts)}] if texts or not results else results


def _result(given: Any, path: str) -> str:
    """Return the text of a tool's result. A reference to a tool becomes a sentence; `_tools` shows the model
    that tool.
    """
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        return "\n".join(_texts(given or [], path))
    told = []
    for i, block in enumerate(given):
        if _kind(block, f"{path}.{i}") == "tool_reference":
            name = _string(block, "tool_name", f"{path}.{i}")
            told.append({"type": "text", "text": f"The tool {name} can be called now."})
        else:
            told.append(block)
    return "\n".join(_texts(told, path))


def _texts(blocks: Any, path: str, skipped: tuple[str, ...] = ()) -> list[str]:
    """Return the texts of blocks that must all be texts or documents, except for the skipped types. Raises:
    GatewayError.
    """
    if not isinstance(blocks, list):
        raise invalid(f"{path}: must be a string or an array of blocks", path)
    found: list[str] = []
    for i, block in enumerate(blocks):
        place = f"{path}.{i}"
        kind = _kind(block, place)
        if kind in skipped:
            continue
        source = block.get("source")
        if kind == "text":
            found.append(_string(block, "text", place))
        elif kind == "document" and isinstance(source, dict) and source.get("type") in ("text", "content"):
            told = [text(block, "title"), text(block, "context"), *_document(source, f"{place}.source")]
            found.append("\n".join(filter(None, told)))
        elif kind == "search_result":
            told = [text(block, "title"), text(block, "source")]
            found += ["\n".join(filter(None, told)), *_texts(block.get("content", []), place)]
        else:
            raise unsupported(f"{place}: blocks of type {kind[:50]} are not supported: the daemon serves text", path)
    return found


def _document(source: dict[str, Any], path: str) -> list[str]:
    """Return a document's text, which may be given in pieces."""
    if source["type"] == "text":
        return [_string(source, "data", path)]
    content = source.get("content")
    return [content] if isinstance(content, str) else _texts(content, f"{path}.content")


def _kind(block: Any, path: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise invalid(f"{path}: must be an object with a type", path)
    return kind


def _string(block: dict[str, Any], name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid(f"{path}.{name}: must be a string", f"{path}.{name}")
    return value


# ---- tools, thinking, form


def _tools(given: list[Any], messages: list[Any]) -> tuple[list[dict[str, Any]], set[str]]:
    """Return the tools that may be called at the end of the conversation, and their names. A deferred tool counts only
    after a result has referred to it; system messages add and remove tools. Later tools stand after the others, so that
    the beginning of the prompt stays the same. If the request relies on Anthropic's servers to search for tools,
    nothing is deferred, because nothing searches here.
    """
    known: dict[str, dict[str, Any] | None] = {}  # None: a tool that Anthropic's servers run, or that needs pictures
    shown: dict[str, dict[str, Any]] = {}

    def add(name: str, path: str) -> None:
        if name not in known:
            raise invalid(f"{path}: Tool reference '{name[:100]}' not found in available tools", path)
        tool = known[name]
        if tool is not None:
            shown[name] = tool

    names: list[tuple[str, bool]] = []  # names of tools, and whether each is deferred
    for i, tool in enumerate(given):
        name, known_tool = _tool(tool, f"tools.{i}")
        known[name] = known_tool
        names.append((name, boolean(tool, "defer_loading")))
    has_search = any(str(tool.get("type")).startswith("tool_search_tool") for tool in given)
    for name, is_deferred in names:
        if has_search or not is_deferred:
            add(name, "tools")
    for path, block in _tool_changes(messages):
        if block["type"] == "tool_reference":
            add(block["tool_name"], path)
            continue
        tool = table(block, "tool")
        kind = _kind(tool, f"{path}.tool")
        if kind == "tool_definition" and block["type"] == "tool_addition":
            name, known[name] = _tool(tool.get("definition"), f"{path}.tool.definition")
        elif kind == "tool_reference":
            name = _string(tool, "name", f"{path}.tool")
        else:
            raise unsupported(f"{path}.tool: tools of type {kind[:50]} are not supported", path)
        if block["type"] == "tool_addition":
            add(name, path)
        else:
            shown.pop(name, None)
    return list(shown.values()), set(shown)


def _tool(tool: Any, path: str) -> tuple[str, dict[str, Any] | None]:
    """Return a tool's name, and the function that the model sees; None: it does not see the tool. Sets of tools have no
    name; only Anthropic's servers know them.
    """
    if not isinstance(tool, dict):
        raise invalid(f"{path}: must be an object", path)
    kind = text(tool, "type") or "custom"
    if kind != "custom" and kind not in TOOLS:
        return text(tool, "name") or "", None
    name = _string(tool, "name", path)
    description, parameters = TOOLS.get(kind) or (text(tool, "description") or "", tool.get("input_schema"))
    if not name or not isinstance(parameters, dict):
        raise invalid(f"{path}: needs a name and an input_schema", path)
    function: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    if boolean(tool, "strict"):
        function["strict"] = True
    return name, {"type": "function", "function": function}


def _tool_changes(messages: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the blocks that make tools known to the model or remove them, with their paths."""
    for i, message in enumerate(messages):
        content, path = message.get("content"), f"messages.{i}.content"
        for j, block in enumerate(content if isinstance(content, list) else []):
            if block["type"] in _TOOL_CHANGES:
                yield f"{path}.{j}", block
            results = block.get("content") if block["type"] == "tool_result" else None
            for n, result in enumerate(results if isinstance(results, list) else []):
                if result["type"] == "tool_reference":
                    yield f"{path}.{j}.content.{n}", result


def _read_choice(given: dict[str, Any], chat: Chat, names: set[str]) -> None:
    if not given:
        return
    kind = given.get("type")
    if kind == "tool":
        name = _string(given, "name", "tool_choice")
        if name not in names:
            raise invalid(f"tool_choice.name: there is no tool {name[:100]}", "tool_choice")
        chat.tool_choice = {"type": "function", "function": {"name": name}}
    elif isinstance(kind, str) and kind in _CHOICES:
        chat.tool_choice = _CHOICES[kind]
        if kind == "any" and not names:
            raise invalid("tool_choice: any needs tools", "tool_choice")
    else:
        raise invalid("tool_choice.type: must be auto, any, tool or none", "tool_choice")
    if boolean(given, "disable_parallel_tool_use"):
        chat.parallel_tool_calls = False


def _read_thinking(body: dict[str, Any], chat: Chat, messages: list[Any]) -> None:
    """Read the thinking options. Models think only if the request enables it."""
    thinking = table(body, "thinking")
    kind = thinking.get("type", "disabled")
    if kind not in ("enabled", "disabled", "adaptive", "between_tools"):
        raise invalid("thinking.type: must be enabled, disabled, adaptive or between_tools", "thinking")
    chat.enable_thinking = kind in ("enabled", "adaptive")  # between_tools: Claude only reports its progress there
    budget = integer(thinking, "budget_tokens")
    if kind == "enabled":
        if budget is None:
            raise invalid("thinking.budget_tokens: Field required", "thinking")
        if budget < 1:
            raise invalid("thinking.budget_tokens: must be at least 1", "thinking")
        chat.reasoning_budget = budget
    effort = _turn_effort(messages) or text(table(body, "output_config"), "effort")
    if effort:
        chat.template_kwargs["reasoning_effort"] = effort


def _turn_effort(messages: list[Any]) -> str | None:
    """Return the effort that a system message asks for in the current turn. Results of tools do not end a turn."""
    for message in reversed(messages):
        effort = text(table(message, "output_config"), "effort") if message["role"] == "system" else None
        if effort:
            return effort
        if message["role"] == "user" and not _has_results(message["content"]):
            break
    return None


def _has_results(content: Any) -> bool:
    return isinstance(content, list) and any(block["type"] == "tool_result" for block in content)


def _read_format(body: dict[str, Any], chat: Chat) -> None:
    form = table(table(body, "output_config"), "format") or table(body, "output_format")
    if not form:
        return
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise invalid("output_config.format: must be of type json_schema, with a schema", "output_config")
    chat.json_schema, chat.is_strict = form["schema"] or True, True
    chat.form_param = "output_config"
