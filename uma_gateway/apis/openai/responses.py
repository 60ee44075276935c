"""`/v1/responses`: OpenAI's newer endpoint, with items, named stream events, and conversations that are kept for a
while.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from uma_gateway import sse
from uma_gateway.apis.openai import chunks, items
from uma_gateway.apis.openai.conversations import append, conversation_of
from uma_gateway.apis.openai.held import Held, read_whole
from uma_gateway.apis.openai.items import Item, Names, Thoughts
from uma_gateway.apis.openai.kept import find, found, has_item, not_kept, referred, send_page, store_of
from uma_gateway.apis.openai.pace import Pace, progress_field
from uma_gateway.apis.openai.request import MODES, answer_form, read_effort, read_parallel, read_tools, read_verbosity
from uma_gateway.apis.openai.store import Stored
from uma_gateway.asking import Ask, count_tokens, plan_chat
from uma_gateway.body import array, boolean, integer, table, text
from uma_gateway.chat.diff import Diff
from uma_gateway.errors import GatewayError, Kind, invalid, unsupported
from uma_gateway.exchange import Exchange
from uma_gateway.fields import MOST_LOGPROBS, model_name, most_tokens
from uma_gateway.generate import Plan, begin, ended, final, note_end, relay
from uma_gateway.generation import Generation
from uma_gateway.link import Event
from uma_gateway.model import Model
from uma_gateway.prompting import Chat, Prompt

KIND = "response"
LOGPROBS_WANTED = "message.output_text.logprobs"
THOUGHTS_CARRIED = "reasoning.encrypted_content"
_ECHOED = (
    "instructions",
    "max_output_tokens",
    "previous_response_id",
    "temperature",
    "top_p",
    "truncation",
    "user",
    "metadata",
    "prompt_cache_key",
)


@dataclass
class Request:
    """One request, and the conversation that it continues."""

    body: dict[str, Any]
    ask: Ask
    input_items: list[Item]
    items: list[Item]  # the whole conversation
    conversation_id: str  # conversation that this response is added to; "": none
    is_kept: bool
    is_cut: bool  # messages that do not fit the context were dropped
    names: Names  # of tools
    thoughts: Thoughts

    @property
    def has_logprobs(self) -> bool:
        return self.ask.n_logprobs is not None


async def on_responses(exchange: Exchange) -> None:
    request = await _read(exchange, await exchange.json())
    await exchange.while_connected(_answer(exchange, request))


async def on_input_tokens(exchange: Exchange) -> None:
    request = await _read(exchange, await exchange.json())
    n_tokens = await count_tokens(exchange, await exchange.gateway.model(is_new=True), request.ask.chat)
    await exchange.send_json({"object": "response.input_tokens", "input_tokens": n_tokens})


# ---- what was kept


def _continued(exchange: Exchange, body: dict[str, Any]) -> Stored | None:
    """Return the response or conversation that a request continues. Raises: GatewayError."""
    previous = text(body, "previous_response_id")
    if body.get("conversation") is not None and previous is not None:
        raise invalid("`previous_response_id` conflicts with `conversation`", "previous_response_id")
    if not previous:
        return conversation_of(exchange, body)
    stored = find(exchange, KIND, previous)
    if stored is None:  # 400, as at OpenAI: the path is not at fault
        message = not_kept(exchange, KIND, previous)
        raise invalid(message, "previous_response_id", "previous_response_not_found")
    return stored


async def on_get(exchange: Exchange) -> None:
    if exchange.query.get("stream") == "true":
        raise unsupported("`stream`: a response that was made is not streamed again", "stream")
    await exchange.send_json(found(exchange, KIND, exchange.params["id"]).response)


async def on_input_items(exchange: Exchange) -> None:
    """List the items of a response's request."""
    await send_page(exchange, found(exchange, KIND, exchange.params["id"]).input_items)


async def on_delete(exchange: Exchange) -> None:
    response_id = exchange.params["id"]
    found(exchange, KIND, response_id)
    store_of(exchange).delete(exchange.caller.account, response_id)
    await exchange.send_json({"id": response_id, "object": "response", "deleted": True})


async def on_cancel(exchange: Exchange) -> None:
    """Refuse, as OpenAI does for a response that was not made in the background. Raises: GatewayError."""
    found(exchange, KIND, exchange.params["id"])
    raise invalid("a response that is kept has ended: only those of `background` can be cancelled", "background")


async def on_compact(exchange: Exchange) -> None:
    """Refuse it. Raises: GatewayError."""
    raise unsupported("responses/compact is not supported: ask for a summary as for any answer")


# ---- the request


async def _read(exchange: Exchange, body: dict[str, Any]) -> Request:
    """Read a request. Raises: GatewayError."""
    if boolean(body, "background"):
        raise unsupported("`background` is not supported: a response ends with its connection", "background")
    for name in ("context_management", "moderation"):
        if body.get(name):
            raise unsupported(f"`{name}` is done by OpenAI's servers, and not supported", name)
    if body.get("prompt") is not None:
        raise unsupported("`prompt` is kept on OpenAI's servers, and not supported", "prompt")
    earlier = _continued(exchange, body)
    exchange.also_reads(earlier.n_bytes if earlier else 0)
    given = items.read_input(body.get("input"), is_continued=bool(earlier and earlier.items))
    input_items = [referred(exchange, item, f"input[{i}]") for i, item in enumerate(given)]
    conversation = [*(earlier.items if earlier else ()), *input_items]
    messages = await exchange.read(items.to_messages, conversation)
    instructions = text(body, "instructions")
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    if not messages:
        raise invalid("`input` has no item that the model is shown", "input")
    groups = [(array(body, "tools"), "tools"), *items.added_tools(conversation)]
    told = {tool["function"]["name"]: tool for group, name in groups for tool in items.read_tools(group, name)}
    tools, choice = read_tools(list(told.values()), _choice(body.get("tool_choice")))
    chat = Chat(messages, tools, choice, read_parallel(body, choice))
    chat.json_schema, chat.is_strict = answer_form(table(table(body, "text"), "format"), "text.format")
    chat.form_param = "text.format"
    read_effort(text(table(body, "reasoning"), "effort"), chat)
    read_verbosity(table(body, "text"), chat)
    ask = Ask(chat, is_stream=boolean(body, "stream"), n_logprobs=_logprobs_wanted(body))
    truncation = text(body, "truncation") or "disabled"
    if truncation not in ("auto", "disabled"):
        raise invalid("`truncation` must be auto or disabled", "truncation")
    is_kept, is_cut = boolean(body, "store", True), truncation == "auto"
    conversation_id = earlier.response["id"] if earlier and not body.get("previous_response_id") else ""
    names = Names([tool for group, _ in groups for tool in group])
    thoughts = Thoughts(bool(_summary(body)), THOUGHTS_CARRIED in array(body, "include"))
    return Request(body, ask, input_items, conversation, conversation_id, is_kept, is_cut, names, thoughts)


def _summary(body: dict[str, Any]) -> str | None:
    """Return the wanted kind of summary. `generate_summary` is the older name of the field."""
    asked = table(body, "reasoning")
    return text(asked, "summary") or text(asked, "generate_summary")


def _choice(choice: Any) -> Any:
    """Return the tool choice. A choice of a tool that runs on OpenAI's servers is refused, because it cannot be
    followed.

    Raises: GatewayError.
    """
    if isinstance(choice, dict) and choice.get("type") not in ("function", "custom", "allowed_tools", *MODES):
        raise unsupported("`tool_choice` names a tool that is not a function", "tool_choice")
    return choice


def _logprobs_wanted(body: dict[str, Any]) -> int | None:
    n_top = integer(body, "top_logprobs", 0, MOST_LOGPROBS)
    return (n_top or 0) if LOGPROBS_WANTED in array(body, "include") or n_top else None


async def _answer(exchange: Exchange, request: Request) -> None:
    answers = exchange.gateway.config.answers

    async def plan_for(model: Model) -> Plan:
        max_tokens = most_tokens(request.body, ("max_output_tokens",), model, answers)
        ask = request.ask
        if request.is_cut:
            ask = replace(ask, chat=await _fitting(exchange, model, ask.chat, max_tokens))
        plan = await plan_chat(exchange, model, ask, request.body, max_tokens)
        if ask.is_stream:
            plan.fields.update(progress_field(request.body, model))
        return plan

    async with begin(exchange, plan_for) as (plan, generation):
        shape = _shape(exchange, request, plan.model)
        if request.ask.is_stream:
            await _Stream(exchange, request, shape, plan.context).run(generation)
            return
        eos = await final(generation)
        note_end(exchange, eos)
        output = _whole(request, plan.context, eos)
        response = _ended(shape, eos, output)
        _keep(exchange, request, response)
        await exchange.send_json(response)


async def _fitting(exchange: Exchange, model: Model, chat: Chat, max_tokens: int) -> Chat:
    """Shorten the conversation, as `truncation: auto` asks. It then begins with the first user message after which the
    rest fits the context and leaves a quarter of it for the answer. If everything fits, or nothing does, the
    conversation is unchanged.
    """
    if await _fits(exchange, model, chat, model.n_ctx - 1):
        return chat
    messages = chat.messages
    n_told = next((i for i, message in enumerate(messages) if message["role"] not in ("system", "developer")), 0)
    starts = [i for i, message in enumerate(messages) if i > n_told and message["role"] == "user"]
    most = model.n_ctx - min(max_tokens, model.n_ctx // 4)
    low, high, fitting = 0, len(starts), chat
    while low < high:  # dropping more messages always leaves fewer tokens
        middle = (low + high) // 2
        cut = replace(chat, messages=[*messages[:n_told], *messages[starts[middle] :]])
        if await _fits(exchange, model, cut, most):
            high, fitting = middle, cut
        else:
            low = middle + 1
    return fitting


async def _fits(exchange: Exchange, model: Model, chat: Chat, most: int) -> bool:
    try:
        return await count_tokens(exchange, model, chat) <= most
    except GatewayError as error:
        if error.kind is Kind.CONTEXT:  # or more bytes than the daemon accepts
            return False
        raise


def _shape(exchange: Exchange, request: Request, model: Model) -> dict[str, Any]:
    """Return a response that has just begun."""
    body = request.body
    answers = exchange.gateway.config.answers
    return {
        "id": items.new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "conversation": {"id": request.conversation_id} if request.conversation_id else None,
        "error": None,
        "incomplete_details": None,
        "model": model_name(body, model),
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "reasoning": {"effort": table(body, "reasoning").get("effort"), "summary": _summary(body)},
        "service_tier": body.get("service_tier") or "default",
        "store": request.is_kept,
        "text": {**table(body, "text"), "format": table(body, "text").get("format") or {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": body.get("top_logprobs") or 0,
        "usage": None,
        **{name: body.get(name) for name in _ECHOED},
        "temperature": answers.temperature if body.get("temperature") is None else body["temperature"],
        "top_p": answers.top_p if body.get("top_p") is None else body["top_p"],
        "truncation": body.get("truncation") or "disabled",
        "metadata": body.get("metadata") or {},
    }


def _whole(request: Request, prompt: Prompt, eos: Event) -> list[Item]:
    message, told = read_whole(prompt.parser(), eos.get("text", ""), eos.get("logprobs") or ())
    logprobs = chunks.logprobs(told) if request.has_logprobs else None
    return items.output_items(message, _status(eos), request.names, request.thoughts, logprobs)


def _status(eos: Event) -> str:
    return "completed" if eos["reason"] == "stop" else "incomplete"


def _ended(shape: dict[str, Any], eos: Event, output: list[Item]) -> dict[str, Any]:
    status = _status(eos)
    return {
        **shape,
        "status": status,
        "completed_at": int(time.time()),
        "incomplete_details": None if status == "completed" else {"reason": "max_output_tokens"},
        "output": output,
        "usage": usage(eos["usage"]),
        "timings": chunks.timings(eos),
    }


def _failure(error: GatewayError) -> dict[str, Any]:
    """Return the error object of a response that failed. OpenAI's type knows few codes; `reason` has ours."""
    code = "rate_limit_exceeded" if error.kind is Kind.RATE_LIMIT else "server_error"
    return {"code": code, "message": error.message, "reason": error.code}


def usage(counts: dict[str, int]) -> dict[str, Any]:
    n_prompt, n_answer = counts["prompt_tokens"], counts["completion_tokens"]
    return {
        "input_tokens": n_prompt,
        # OpenAI's type has both counts
        "input_tokens_details": {"cached_tokens": counts["cached_tokens"], "cache_write_tokens": 0},
        "output_tokens": n_answer,
        "output_tokens_details": {"reasoning_tokens": counts.get("reasoning_tokens", 0)},
        "total_tokens": n_prompt + n_answer,
    }


def _keep(exchange: Exchange, request: Request, response: dict[str, Any]) -> None:
    input_items = items.all_kept(request.input_items, has_item(exchange, request.conversation_id))
    if request.conversation_id:
        append(exchange, request.conversation_id, [*input_items, *response["output"]])
    if request.is_kept:
        conversation = [*request.items, *response["output"]]
        store_of(exchange).put(exchange.caller.account, response, input_items, conversation)


# ---- streamed


class _Events(NamedTuple):
    """The events of an item's text: their name, and the fields that give the text's place in the item. `part`: the name
    of the events of the part that holds the text; "": the item has no parts.
    """

    text: str
    place: dict[str, int]
    part: str = ""


_THOUGHT_EVENTS = _Events("response.reasoning_text", {"content_index": 0}, "response.content_part")
_SUMMARY_EVENTS = _Events("response.reasoning_summary_text", {"summary_index": 0}, "response.reasoning_summary_part")
_EVENTS = {
    "message": _Events("response.output_text", {"content_index": 0}, "response.content_part"),
    "function_call": _Events("response.function_call_arguments", {}),
    "custom_tool_call": _Events("response.custom_tool_call_input", {}),
}


class _Open:
    """The item that is being written."""

    def __init__(self, kind: str, number: int, call: Diff | None, request: Request) -> None:
        self.kind = kind  # its type
        self.id = items.new_item_id(kind)
        self.number = number  # output_index
        self.place = {"item_id": self.id, "output_index": number}
        self.call = call
        self.name = request.names.told(call.tool_name) if call is not None else {}
        self.thoughts = request.thoughts
        self.events = _EVENTS.get(kind) or (_SUMMARY_EVENTS if self.thoughts.is_summary else _THOUGHT_EVENTS)
        self.parts: list[str] = []
        self.logprobs: list[Any] = []

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def part(self, text: str) -> Item:
        """The one part of a thought or of a message, with this much of its text."""
        return self.thoughts.part(text) if self.kind == "reasoning" else items.text_part(text, self.logprobs)

    def item(self, status: str) -> Item:
        if self.kind == "reasoning":
            return self.thoughts.item(self.id, self.text, status)
        if self.call is None:
            return items.message_item(self.id, [self.part(self.text)], status)
        if self.kind == "custom_tool_call":
            return items.custom_item(self.id, self.call.tool_id, self.name, self.text)
        return items.call_item(self.id, self.call.tool_id, self.name, self.text, status)


class _Stream:
    """One streamed response. Its events are numbered; its items open and close one after the other."""

    def __init__(self, exchange: Exchange, request: Request, shape: dict[str, Any], prompt: Prompt) -> None:
        self._exchange = exchange
        self._request = request
        self._shape = shape
        self._parser = prompt.parser()
        self._n_events = 0
        self._open: _Open | None = None
        self._output: list[Item] = []
        self._held = Held()
        self._pace = Pace(request.body)
        self._tool = -1

    def _event(self, name: str, /, **fields: Any) -> bytes:
        self._n_events += 1
        return sse.event(name, {"type": name, "sequence_number": self._n_events - 1, **fields})

    async def run(self, generation: Generation) -> None:
        await self._exchange.start_sse()
        begun = [self._event(f"response.{name}", response=self._shape) for name in ("created", "in_progress")]
        await self._exchange.write(b"".join(begun))
        await relay(self._exchange, [generation], lambda _, event: b"".join(self._on_event(event)), failed=self._failed)

    def _failed(self, error: GatewayError) -> bytes:
        failed = {**self._shape, "status": "failed", "error": _failure(error), "output": self._output}
        return self._event("response.failed", response=failed)

    def _on_event(self, event: Event) -> list[bytes]:
        """Return the bytes of an event. Raises: GatewayError."""
        if event["event"] == "token":
            return self._on_text(event["text"], event.get("logprobs"), **self._pace.token(event, 0))
        if event["event"] == "progress":
            told = self._pace.read(event)
            return [self._event("response.in_progress", response=self._shape, **told)] if told else []
        note_end(self._exchange, event)
        ended(event)
        out = self._on_text("", event.get("logprobs"), is_final=True)
        if not self._output and self._open is None:  # a response without any item confuses clients
            out += self._begin("message")
        out += self._close(_status(event))
        response = _ended(self._shape, event, self._output)
        _keep(self._exchange, self._request, response)
        # llama-server puts the figures beside the response too
        return [*out, self._event(f"response.{response['status']}", response=response, timings=response["timings"])]

    def _on_text(self, text: str, logprobs: list[Event] | None, is_final: bool = False, **more: Any) -> list[bytes]:
        self._held.add(logprobs or ())
        return [chunk for diff in self._parser.feed(text, is_final) for chunk in self._on_diff(diff, more)]

    def _on_diff(self, diff: Diff, more: dict[str, Any]) -> list[bytes]:
        """Return the bytes of a diff. `more` is sent with each piece."""
        out: list[bytes] = []
        told = chunks.logprobs(self._held.take(diff)) if self._request.has_logprobs else []
        if diff.reasoning:
            out += self._at("reasoning") + self._add(diff.reasoning, **more)
        if diff.content:
            out += self._at("message") + self._add(diff.content, logprobs=told, **more)
        if diff.tool >= 0:
            if diff.tool != self._tool:
                self._tool = diff.tool
                kind = "custom_tool_call" if diff.tool_name in self._request.names.custom else "function_call"
                out += self._close("completed") + self._begin(kind, diff)
            if self._open is not None and self._open.kind == "custom_tool_call":
                self._open.parts.append(diff.tool_arguments)  # sent whole: a custom tool's input is text, not JSON
            elif diff.tool_arguments:
                out += self._add(diff.tool_arguments, **more)
        return out

    def _at(self, kind: str) -> list[bytes]:
        """Close the open item unless it is of this kind, and open one."""
        if self._open is not None and self._open.kind == kind:
            return []
        return self._close("completed") + self._begin(kind)

    def _begin(self, kind: str, call: Diff | None = None) -> list[bytes]:
        self._open = opened = _Open(kind, len(self._output), call, self._request)
        shown = opened.item("in_progress")
        if kind == "message":
            shown["content"] = []
        out = [self._event("response.output_item.added", output_index=opened.number, item=shown)]
        events = opened.events
        if events.part:
            out.append(self._event(events.part + ".added", **opened.place, **events.place, part=opened.part("")))
        return out

    def _add(self, text: str, **more: Any) -> list[bytes]:
        """Add text to the open item."""
        opened = self._open
        assert opened is not None
        opened.parts.append(text)
        opened.logprobs += more.get("logprobs", ())
        return [self._event(opened.events.text + ".delta", **opened.place, delta=text, **opened.events.place, **more)]

    def _close(self, status: str) -> list[bytes]:
        opened, out = self._open, []
        if opened is None:
            return []
        place, item, events = opened.place, opened.item(status), opened.events
        if events.part:
            more = {"logprobs": opened.logprobs} if opened.kind == "message" else {}
            out.append(self._event(events.text + ".done", **place, **events.place, text=opened.text, **more))
            out.append(self._event(events.part + ".done", **place, **events.place, part=opened.part(opened.text)))
        elif opened.kind == "custom_tool_call":
            out.append(self._event(events.text + ".delta", **place, delta=item["input"]))
            out.append(self._event(events.text + ".done", **place, input=item["input"]))
        else:
            out.append(self._event(events.text + ".done", **place, name=item["name"], arguments=opened.text))
        out.append(self._event("response.output_item.done", output_index=opened.number, item=item))
        self._output.append(item)
        self._open = None
        return out
