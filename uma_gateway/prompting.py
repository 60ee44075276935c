"""Turns a `Chat`, which every family makes of its requests, into the fields of a generate request and a parser for each
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from uma_gateway.chat.errors import ChatCode, ChatError
from uma_gateway.chat.parser import Parser as ChatParser
from uma_gateway.chat.templates import Applied, Templates, Thinking
from uma_gateway.errors import from_chat
from uma_gateway.exchange import Exchange
from uma_gateway.fence import Unfenced
from uma_gateway.fields import need
from uma_gateway.model import Model
from uma_gateway.parsing import Parser
from uma_gateway.turns import (
    Message,
    merged,
    plain_content,
    read_messages,
    system_texts,
    with_one_head,
    with_one_system,
)


@dataclass
class Chat:
    """A conversation in OpenAI's form, and the form that its answer may have.

    `tool_choice`: auto, none, required, or an object that names tools, in OpenAI's form.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool | None = None  # None: as the template allows
    json_schema: dict[str, Any] | bool | None = None  # the answer's form; True: any object; None: any text
    form_param: str = "response_format"  # the client's field that sets the answer's form
    is_strict: bool = False  # refuse a schema that cannot be enforced completely
    grammar: str = ""  # GBNF
    # a constraint in the daemon's form, for the whole answer: thinking is switched off if the template can do that
    constraint: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    # continue the last message, or one part of it: content, reasoning_content
    continue_final_message: bool | str = False
    reasoning_format: str = "auto"
    enable_thinking: bool = True
    reasoning_budget: int | None = None  # tokens; None: any
    reasoning_message: str = ""  # text that ends a thought whose budget is used up
    template_kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def has_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def form_name(self) -> str:
        """The field that gives the answer its form."""
        return "tools" if self.has_tools and self.json_schema is None else self.form_param


class Prompt(NamedTuple):
    fields: dict[str, Any]  # fields of the generate request: `prompt` and others
    stops: list[str]  # further texts that end the answer
    parser: Callable[[], Parser]  # makes a new parser for every answer


async def render(exchange: Exchange, model: Model, chat: Chat) -> Prompt:
    """Write the prompt of a conversation. Raises: GatewayError."""
    try:
        templates = await model.templates()
        applied = await exchange.in_thread(_apply, templates, chat, model.chat_template)
    except ChatError as error:
        raise from_chat(error) from None
    fields: dict[str, Any] = {"prompt": applied.prompt}
    if chat.constraint is not None:
        applied = replace(applied, constraint=behind_thought(chat.constraint, applied.thinking))
    if applied.constraint is not None:
        need(model, "constraint", chat.form_name)
        fields["constraint"] = applied.constraint
    if applied.preserved_tokens:
        fields["preserved_tokens"] = applied.preserved_tokens
    fields |= _thinking(model, chat, applied)
    return Prompt(fields, applied.stops, lambda: _parser(chat, applied))


def _parser(chat: Chat, applied: Applied) -> Parser:
    is_json_beside_calls = chat.json_schema is not None and chat.has_tools
    return Unfenced(ChatParser(applied)) if is_json_beside_calls else ChatParser(applied)


def behind_thought(constraint: dict[str, Any], thinking: Thinking | None) -> dict[str, Any]:
    """Return the constraint, made to apply only after the thought that the prompt has begun."""
    if thinking is None or not thinking.is_open:
        return constraint
    return {**constraint, "triggers": [{"type": "word", "value": thinking.end.strip(), "after": True}]}


def _begun(chat: Chat, messages: list[Message]) -> tuple[Chat, list[Message]]:
    """Drop a last message that is to be continued but is empty: templates write nothing for it, not even its role. The
    answer then begins like any other.
    """
    last = messages[-1]
    says = plain_content(last.get("content")), last.get("reasoning_content"), last.get("tool_calls")
    if last["role"] != "assistant" or len(messages) == 1 or any(says):
        return chat, messages
    return replace(chat, continue_final_message=False, add_generation_prompt=True), messages[:-1]


def _apply(templates: Templates, chat: Chat, source: str) -> Applied:
    """Apply the template, whose text is `source`. If it refuses the messages, try again with one system message, and
    neighbouring messages of one role joined: clients of the Responses API and of Anthropic's send several user messages
    in a row, and system messages in the middle. If it leaves out such a message, the user says it.

    Raises: GatewayError, ChatError. Blocks for 1 to 20 ms, and for seconds if there is much to read.
    """
    messages = with_one_head(read_messages(chat.messages, source))
    if chat.continue_final_message:
        chat, messages = _begun(chat, messages)
    moved = with_one_system(messages)
    try:
        applied = _render(templates, chat, messages)
    except ChatError as error:
        if error.code is not ChatCode.TEMPLATE_FAILED or merged(moved) == messages:
            raise
    else:
        if moved == messages or all(text.strip() in applied.prompt for text in system_texts(messages)):
            return applied
    return _render(templates, chat, merged(moved))


def _render(templates: Templates, chat: Chat, messages: list[Message]) -> Applied:
    schema = chat.json_schema
    return templates.apply(
        messages,
        tools=chat.tools if chat.has_tools else None,  # a model that sees tools may call them in any case
        tool_choice=chat.tool_choice,
        parallel_tool_calls=chat.parallel_tool_calls,
        json_schema={} if schema is True else schema or None,
        strict=chat.is_strict,
        grammar=chat.grammar or None,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        reasoning_format=chat.reasoning_format,
        enable_thinking=chat.enable_thinking and chat.constraint is None,
        chat_template_kwargs=chat.template_kwargs,
    )


def _thinking(model: Model, chat: Chat, applied: Applied) -> dict[str, Any]:
    """Return the fields that mark the reasoning in an answer and limit its tokens."""
    if applied.thinking is None:
        return {}
    if chat.reasoning_budget is not None:
        need(model, "reasoning", "reasoning_budget_tokens")
    elif not model.can("reasoning"):
        return {}
    budget: dict[str, Any] = {}
    if chat.reasoning_budget is not None:
        budget = {"budget_tokens": chat.reasoning_budget, "message": chat.reasoning_message}
    return {"reasoning": {"start": applied.thinking.start, "end": applied.thinking.end, **budget}}
