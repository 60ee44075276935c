"""A model's chat templates: turn a conversation into the prompt, the answer's constraint, and a way to parse it."""

from __future__ import annotations

import functools
import hashlib
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from uma_gateway.chat import generic
from uma_gateway.chat.check import check_template
from uma_gateway.chat.constraint import (
    Constraint,
    Schemas,
    constraint_of,
    either_constraint,
    json_constraint,
    too_large,
    unmarked_constraint,
)
from uma_gateway.chat.errors import ChatCode, ChatError
from uma_gateway.chat.library import Handle, LibraryError, call, encode
from uma_gateway.chat.schema import (
    MAX_NAME_BYTES,
    check_schema,
    is_readable,
    readable,
    refuse_unenforced,
    subschemas,
)

Message = dict[str, Any]
Tool = dict[str, Any]

# llama.cpp's parser of calls grows with the square of their number: 1,000 tools make 6 MB of it. 5,000 made 150 MB, and
# reading it stopped all clients' streams for seconds.
MAX_TOOLS = 1_000
# llama.cpp's template engine copies the variables for each turn of a loop: 1,000 of them and 4,000 messages took 8 s
MAX_KWARGS = 100
# of processor time for one use of a template, besides 2 s for each MB of the request; bundled ones need 20 ms at most
MAX_SECONDS = 5.0
_MOST_PROPERTIES = 200  # llama.cpp's own grammar of an object takes 12 ms with 200 optional ones, and 7 s with 1,000
# Mistral's templates refuse ids of other lengths, and clients that change the model in the middle of a conversation
# send them
_SHORT_IDS = re.compile(r"\|\s*length\s*!=\s*9|length\s*==\s*9")
_SHORT_ID_ALPHABET = string.ascii_letters + string.digits
_PROBE: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": "probe_function",
            "description": "Tries.",
            "parameters": {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]},
        },
    }
]
_PROBE_MESSAGES = [{"role": "user", "content": "Question."}]


@dataclass(frozen=True)
class Thinking:
    """The texts between which the model thinks. `is_open`: the prompt ends inside a thought."""

    start: str
    end: str
    is_open: bool


@dataclass(frozen=True)
class AnswerFormat:
    """How to read the answer: needed by `Parser`, opaque to others."""

    format: int
    parser: str
    generation_prompt: str
    is_continuation: bool


@dataclass(frozen=True)
class Applied:
    """A request, ready for the daemon."""

    prompt: str  # without the BOS that the daemon adds
    constraint: Constraint | None  # the wire's field
    stops: list[str]  # texts that end every answer of this template
    # special tokens that must stay in the answer's text, which cannot be parsed without them
    preserved_tokens: list[str]
    thinking: Thinking | None
    answer: AnswerFormat


@dataclass(frozen=True)
class _Choice:
    mode: Literal["auto", "none", "required"]
    names: frozenset[str] | None = None  # tools that may be called; None: all


class Templates:
    """The templates of one model. The constructor first tries the template in another process, so it blocks for a third
    of a second or more.

    Raises: ChatError. May be used by several threads at once.
    """

    def __init__(
        self,
        source: str,
        tool_use_source: str = "",
        bos: str = "",
        eos: str = "",
        add_bos: bool = False,
        add_eos: bool = False,
    ) -> None:
        if not (source.strip() or tool_use_source.strip()):  # llama.cpp would use ChatML
            raise ChatError(ChatCode.NO_TEMPLATE, "the model has no chat template")
        facts = {"chat_template": source, "tool_use_template": tool_use_source, "bos": bos, "eos": eos}
        facts |= {"add_bos": add_bos, "add_eos": add_eos}  # type: ignore[dict-item]
        max_depth = check_template(encode(facts, "the template"))
        limits = {"max_depth": max_depth, "max_seconds": MAX_SECONDS}
        self._handle = Handle("templates", encode({**facts, **limits}, "the template"))
        self._parse_handle = self._handle
        self.capabilities: dict[str, bool] = self._handle.facts["capabilities"]
        self._wants_short_ids = bool(_SHORT_IDS.search(source + tool_use_source))
        required = self._probe(self._handle)
        bare = Handle("templates", encode({**facts, "bos": "", "eos": "", **limits}, "the template"))
        other = self._probe(bare)
        if (
            required
            and other
            and required["generation_prompt"] == other["generation_prompt"]
            and required["parser"] != other["parser"]
        ):
            # llama.cpp finds the form of calls by comparing texts; if they contain EOS its result for Mistral-Small-3.2
            # is wrong
            self._parse_handle, required = bare, other
        self.calls_tools = bool(required and required["has_grammar"])  # False: the generic form is used
        # the template leaves earlier calls out of the prompt, and some refuse their results
        self.loses_calls = not self.calls_tools and not self.capabilities.get("supports_tool_calls", False)

    def apply(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: str | Mapping[str, Any] | None = "auto",
        parallel_tool_calls: bool | None = None,
        json_schema: Mapping[str, Any] | None = None,
        strict: bool = False,
        grammar: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | str = False,
        reasoning_format: str = "auto",
        enable_thinking: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Applied:
        """Render the conversation and describe its answer. Blocks for 1 to 20 ms.

        messages, tools: as OpenAI's API has them; content is text or parts of type text.
        tool_choice: auto, none, required, or an object that names a function or several (`allowed_tools`).
        parallel_tool_calls: None: as the template allows. False: the answer calls one tool at most.
        json_schema: what an answer that is not a call must be. grammar: GBNF for the same; not with tools or a schema.
        strict: refuse a `json_schema` of which a part would not be enforced. A tool's own `strict` does that for its
        arguments.
        continue_final_message: go on with the last message, which is the assistant's; "reasoning_content" or "content"
        names the part of it.

        Raises: ChatError.
        """
        if len(tools or ()) > MAX_TOOLS:
            raise ChatError(ChatCode.BAD_REQUEST, f"tools: there are {len(tools or ())}, at most {MAX_TOOLS} are read")
        if len(chat_template_kwargs or ()) > MAX_KWARGS:
            message = (
                f"chat_template_kwargs: there are {len(chat_template_kwargs or ())}, at most {MAX_KWARGS} are read"
            )
            raise ChatError(ChatCode.BAD_REQUEST, message)
        used = [_read_tool(tool) for tool in tools or ()]
        choice = _read_choice(tool_choice, used)
        schema = _read_schema(json_schema)
        if grammar and (schema is not None or (used and choice.mode != "none")):
            raise ChatError(ChatCode.BAD_REQUEST, "a grammar cannot be used beside tools or a JSON schema")
        base = {
            "messages": [self._with_short_ids(message) for message in messages]
            if self._wants_short_ids
            else list(messages),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "continue_final_message": continue_final_message,
            "reasoning_format": reasoning_format,
            "enable_thinking": enable_thinking,
            "chat_template_kwargs": dict(chat_template_kwargs or {}),
            "parallel_tool_calls": self._is_parallel(parallel_tool_calls),
        }
        request = _Request(self, base, used, choice, schema, strict, one_call=parallel_tool_calls is False)
        applied = request.apply()
        if not applied.prompt:
            raise ChatError(
                ChatCode.TEMPLATE_FAILED, "the model's chat template writes nothing for messages of these roles"
            )
        return replace(applied, constraint={"gbnf": grammar}) if grammar else applied

    def _is_parallel(self, asked: bool | None) -> bool:
        return (
            self.capabilities.get("supports_parallel_tool_calls", False) or not self.calls_tools
            if asked is None
            else asked
        )

    def _probe(self, handle: Handle) -> dict[str, Any] | None:
        request = {"messages": _PROBE_MESSAGES, "tools": _PROBE, "tool_choice": "required"}
        try:
            applied: dict[str, Any] = call("uma_chat_apply", handle.pointer, encode(request, "a trial"))
        except LibraryError as error:
            if error.code is ChatCode.TEMPLATE_FAILED:
                return None
            raise
        return applied if "probe_function" in applied["prompt"] else {**applied, "has_grammar": False}

    def render(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the library's result for a request: prompt, parser, and whether there is a grammar. `gbnf()` writes
        the grammar.
        """
        return _applied_by(self._handle, request)

    def parse_only(self, request: Mapping[str, Any], rendered: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what `render` returns, except for the prompt. `rendered`: its result for the same request."""
        if rendered is not None and self._parse_handle is self._handle:
            return rendered
        return _applied_by(self._parse_handle, request)

    def _with_short_ids(self, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        changed = dict(message)
        if isinstance(message.get("tool_call_id"), str):
            changed["tool_call_id"] = _short_id(message["tool_call_id"])
        if isinstance(message.get("tool_calls"), list):
            calls = [call for call in message["tool_calls"] if isinstance(call, dict)]
            changed["tool_calls"] = [{**call, "id": _short_id(str(call.get("id", i)))} for i, call in enumerate(calls)]
        return changed


def _applied_by(handle: Handle, request: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(call("uma_chat_apply", handle.pointer, encode(request, "the request")))
    found["gbnf"] = functools.partial(_gbnf, handle, request)
    return found


def _gbnf(handle: Handle, request: Mapping[str, Any]) -> str:
    """Return the grammar that llama.cpp writes for a request. Raises: ChatError if that would take too long."""
    schemas = [request.get("json_schema"), *(tool["function"]["parameters"] for tool in request.get("tools") or ())]
    most = max((len(node.get("properties") or ()) for schema in schemas for _, node in subschemas(schema)), default=0)
    if most > _MOST_PROPERTIES:
        message = f"with this model's template a schema may list {_MOST_PROPERTIES} properties of an object, not {most}"
        raise ChatError(ChatCode.SCHEMA_UNSUPPORTED, message)
    written = call("uma_chat_apply", handle.pointer, encode({**request, "write_grammar": True}, "the request"))
    return str(written["grammar"])


@functools.cache
def _generic_templates() -> Templates:
    return Templates(generic.TEMPLATE)


class _Request:
    """One `Templates.apply`."""

    def __init__(
        self,
        templates: Templates,
        base: dict[str, Any],
        tools: list[Tool],
        choice: _Choice,
        schema: dict[str, Any] | None,
        strict: bool,
        one_call: bool,
    ) -> None:
        self._templates, self._base, self._tools, self._choice, self._schema = templates, base, tools, choice, schema
        self._callable = [tool for tool in tools if choice.names is None or tool["function"]["name"] in choice.names]
        tells_tools = bool(tools) and choice.mode != "none"
        self._is_told = tells_tools and not templates.calls_tools  # tools are described in the generic form
        if not tells_tools and templates.loses_calls:
            self._base = {**base, "messages": generic.without_calls(base["messages"])}
        # a continued answer that must be JSON has already begun as JSON, so it cannot call, unless it must
        self._calls = tells_tools and not (schema is not None and choice.mode == "auto" and self._continued().strip())
        self._is_generic = self._calls and self._is_told
        if strict and schema is not None:
            refuse_unenforced(schema, "the JSON schema")
        for tool in self._callable if self._calls else ():
            if tool["function"].get("strict"):
                refuse_unenforced(tool["function"]["parameters"], f"the schema of {tool['function']['name']}")
        self._schemas = Schemas(self._callable if self._calls else [], schema, strict, one_call)

    def apply(self) -> Applied:
        rendered = self._rendered()
        answer = rendered
        parser_side = _generic_templates() if self._is_generic else self._templates
        if self._calls:
            answer = self._with_tools(parser_side, rendered, self._choice.mode)
            constraint = self._tools_constraint(parser_side, rendered, answer)
        elif self._schema is not None:
            answer, constraint = self._json_only()
        else:
            answer, constraint = self._templates.parse_only(self._base, rendered), None
        return self._applied(rendered, answer, constraint)

    def _rendered(self) -> dict[str, Any]:
        """Write the prompt, with the model's own template."""
        if self._is_told:
            messages = generic.told(self._base["messages"], self._callable, self._choice.mode)
            return self._templates.render({**self._base, "messages": messages})
        request = {**self._base, "tool_choice": self._choice.mode}
        if self._tools:
            request["tools"] = self._tools
        try:
            return self._templates.render(request)
        except LibraryError as error:
            if error.code is not ChatCode.SCHEMA_UNSUPPORTED:
                raise
            return self._templates.render({**request, "tool_choice": "none"})  # the prompt needs no grammar

    def _with_tools(self, side: Templates, rendered: dict[str, Any], mode: str) -> dict[str, Any]:
        """Return grammar and parser of an answer that may, or must, call one of the tools."""
        if mode == self._choice.mode and self._callable == self._tools and rendered["parser"] and not self._is_generic:
            request = {**self._base, "tools": self._tools, "tool_choice": mode}
            try:
                if rendered["has_grammar"] or mode == "auto":
                    return side.parse_only(request, rendered)
            except LibraryError as error:
                if error.code is not ChatCode.SCHEMA_UNSUPPORTED:
                    raise
        return self._analysed(
            side, {"tools": [_with_readable_schema(tool) for tool in self._callable], "tool_choice": mode}
        )

    def _tools_constraint(self, side: Templates, rendered: dict[str, Any], answer: dict[str, Any]) -> Constraint | None:
        """Return the constraint of calls. If a grammar of all tools is larger than the daemon allows, their arguments
        may be any object. If even that is too large, optional calls are not constrained, and a request whose answer
        must follow a grammar is refused.
        """
        is_strict = any(tool["function"].get("strict") for tool in self._callable)
        why = ""
        for schemas in (self._schemas, *(() if is_strict else (self._schemas.with_any_arguments(),))):
            constraint = self._constraint_by(schemas, side, rendered, answer)
            why = too_large(constraint)
            if not why:
                return constraint
        if self._choice.mode == "auto" and self._schema is None and not is_strict:
            return None
        message = f"a grammar of calls to {len(self._callable)} tools is too large: {why}"
        raise ChatError(ChatCode.SCHEMA_UNSUPPORTED, message)

    def _constraint_by(
        self, schemas: Schemas, side: Templates, rendered: dict[str, Any], answer: dict[str, Any]
    ) -> Constraint | None:
        if self._schema is None and self._choice.mode == "auto" and not answer["has_grammar"]:
            return unmarked_constraint(self._fitted(self._with_tools(side, rendered, "required"), rendered), schemas)
        if self._schema is None or self._choice.mode == "required":
            return constraint_of(self._fitted(answer, rendered), schemas, self._choice.mode == "required")
        must = self._with_tools(side, rendered, "required")
        text = self._text_format(side)
        either = either_constraint(self._fitted(must, rendered), self._fitted(text, rendered), schemas)
        return either or constraint_of(self._fitted(answer, rendered), schemas)

    def _json_only(self) -> tuple[dict[str, Any], Constraint | None]:
        text = self._text_format(self._templates)
        begun = self._begun(text["generation_prompt"])
        if text["has_grammar"]:
            return text, constraint_of(text, self._schemas, begun=begun)
        return text, json_constraint(text, self._schemas, begun)

    def _begun(self, generation_prompt: str) -> str:
        """Return the text of the message to be continued, as the prompt ends with it (templates strip it). "": there is
        none.
        """
        content = self._continued()
        forms = content, content.rstrip(), content.strip()
        return next((form for form in forms if generation_prompt.endswith(form)), "")

    def _continued(self) -> str:
        """Return the text of the message to be continued. "": there is none."""
        content = self._base["messages"][-1].get("content") if self._base["continue_final_message"] else None
        if isinstance(content, list):
            return "".join(part.get("text", "") for part in content)
        return content if isinstance(content, str) else ""

    def _text_format(self, side: Templates) -> dict[str, Any]:
        """Return grammar and parser of an answer that is JSON; without a grammar if the template does not know such
        answers.
        """
        assert self._schema is not None
        if is_readable(self._schema):
            return self._analysed(side, {"json_schema": self._schema})
        return self._analysed(side, {})

    def _analysed(self, side: Templates, what: dict[str, Any]) -> dict[str, Any]:
        base = (
            self._base
            if side is self._templates
            else {**self._base, "messages": _PROBE_MESSAGES, "continue_final_message": False}
        )
        return side.parse_only({**base, **what})

    def _fitted(self, answer: dict[str, Any], rendered: dict[str, Any]) -> dict[str, Any]:
        """Return the generic form's generation prompt, with the thinking open if the model's own template opens it."""
        if not self._is_generic:
            return answer
        thinking = _thinking(rendered)
        opened = (
            f"{generic.THINKING_START}\n"
            if thinking and thinking.is_open and thinking.end == generic.THINKING_END
            else ""
        )
        return {**answer, "generation_prompt": generic.GENERATION_PROMPT + opened, "supports_thinking": True}

    def _applied(self, rendered: dict[str, Any], answer: dict[str, Any], constraint: Constraint | None) -> Applied:
        fitted = self._fitted(answer, rendered)
        return Applied(
            prompt=rendered["prompt"],
            constraint=constraint,
            stops=rendered["additional_stops"],
            preserved_tokens=sorted({*rendered["preserved_tokens"], *answer["preserved_tokens"]}),
            thinking=_thinking(rendered),
            answer=AnswerFormat(
                fitted["format"],
                fitted["parser"],
                fitted["generation_prompt"],
                bool(self._base["continue_final_message"]) and not self._is_generic,
            ),
        )


def _thinking(rendered: dict[str, Any]) -> Thinking | None:
    start, ends = rendered["thinking_start_tag"], rendered["thinking_end_tags"]
    if not rendered["supports_thinking"] or not start or not ends:
        return None
    opened = rendered["generation_prompt"].rfind(start)
    return Thinking(start, ends[0], opened >= 0 and ends[0] not in rendered["generation_prompt"][opened:])


def _read_choice(given: str | Mapping[str, Any] | None, tools: Sequence[Tool]) -> _Choice:
    """Read a choice in OpenAI's form, into which the APIs translate theirs. Raises: ChatError."""
    if given is None or given == "auto" or not tools:
        return _Choice("auto" if tools else "none")
    if given in ("none", "required"):
        return _Choice("none" if given == "none" else "required")
    kind = given.get("type") if isinstance(given, Mapping) else None
    allowed: Mapping[str, Any] = {"mode": "required", "tools": [given] if kind == "function" else []}
    if isinstance(given, Mapping) and kind == "allowed_tools":
        allowed = given["allowed_tools"]
    names = frozenset(tool.get("function", {}).get("name") for tool in allowed["tools"])
    if not names or not names <= {tool["function"]["name"] for tool in tools}:
        raise ChatError(ChatCode.BAD_REQUEST, f"tool_choice: {str(given)[:100]} names no tool that there is")
    return _Choice("auto" if allowed["mode"] == "auto" else "required", names)


def _read_tool(tool: Any) -> Tool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise ChatError(ChatCode.BAD_REQUEST, "tools: each has a type, function, and a function with a name")
    if tool.get("type", "function") != "function":
        raise ChatError(ChatCode.BAD_REQUEST, f"tools: the type {str(tool['type'])[:50]} is not supported")
    if len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise ChatError(ChatCode.BAD_REQUEST, f"tools: a name is longer than {MAX_NAME_BYTES} bytes")
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise ChatError(ChatCode.BAD_REQUEST, f"tools: the parameters of {name} are not a schema")
    check_schema(parameters)
    return {
        "type": "function",
        "function": {**function, "description": function.get("description") or "", "parameters": dict(parameters)},
    }


def _read_schema(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ChatError(ChatCode.BAD_REQUEST, "the JSON schema is not an object")
    check_schema(given)
    return dict(given) or {"type": "object"}  # OpenAI's json_object


def _with_readable_schema(tool: Tool) -> Tool:
    return {**tool, "function": {**tool["function"], "parameters": readable(tool["function"]["parameters"])}}


def _short_id(given: str) -> str:
    """Return nine letters and digits, the same for the same id."""
    if len(given) == 9 and given.isascii() and given.isalnum():
        return given
    digest = int.from_bytes(hashlib.sha256(given.encode("utf-8", "replace")).digest()[:8], "little")
    return "".join(_SHORT_ID_ALPHABET[digest // 62**i % 62] for i in range(9))
