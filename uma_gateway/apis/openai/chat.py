"""`/v1/chat/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_gateway.apis.openai import chunks
from uma_gateway.apis.openai.held import Held, read_whole
from uma_gateway.apis.openai.pace import Pace, progress_field
from uma_gateway.apis.openai.request import Shape, read_chat, response_format
from uma_gateway.asking import Ask, count_tokens, plan_chat
from uma_gateway.chat.diff import Diff, Message
from uma_gateway.exchange import Exchange
from uma_gateway.fields import most_tokens
from uma_gateway.generate import Plan, answers_of, begin, ended, final, note_end, relay, stop_told
from uma_gateway.generation import Generation
from uma_gateway.link import Event
from uma_gateway.model import Model
from uma_gateway.parsing import Parser
from uma_gateway.prompting import Prompt
from uma_gateway.sse import DONE

LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")


async def on_chat(exchange: Exchange) -> None:
    body = await exchange.json()
    ask = await exchange.read(read_chat, body)
    response_format(body, ask.chat)
    await exchange.while_connected(_answer(exchange, body, ask))


async def on_input_tokens(exchange: Exchange) -> None:
    body = await exchange.json()
    ask = read_chat(body)
    response_format(body, ask.chat)
    n_tokens = await count_tokens(exchange, await exchange.gateway.model(is_new=True), ask.chat)
    await exchange.send_json({"object": "response.input_tokens", "input_tokens": n_tokens})


async def _answer(exchange: Exchange, body: dict[str, Any], ask: Ask) -> None:
    async def plan_for(model: Model) -> Plan:
        max_tokens = most_tokens(body, LIMITS, model, exchange.gateway.config.answers)
        plan = await plan_chat(exchange, model, ask, body, max_tokens)
        if ask.is_stream:
            plan.fields.update(progress_field(body, model))
        return plan

    async with begin(exchange, plan_for) as (plan, generation):
        shape = Shape.of(plan.model, "chatcmpl-", body)
        if ask.is_stream:
            await _Stream(exchange, shape, plan.context, ask, Pace(body)).run(generation)
        else:
            eos = await final(generation)
            note_end(exchange, eos)
            await exchange.send_json(_completion(shape, plan.context, ask, eos))


# ---- whole


def _completion(shape: Shape, prompt: Prompt, ask: Ask, eos: Event) -> dict[str, Any]:
    choices = []
    for answer in answers_of(eos):
        text = answer.get("text", "") + stop_told(answer, ask.stops_told)
        message, told = read_whole(prompt.parser(), text, answer.get("logprobs") or ())
        choices.append(
            {
                "index": answer["index"],
                "message": message_object(replace(message, content=ask.echo + message.content), ask.has_functions),
                "logprobs": {"content": chunks.logprobs(told), "refusal": None} if ask.n_logprobs is not None else None,
                "finish_reason": finish_reason(answer, message, ask.has_functions),
            }
        )
    return {
        **shape.fields("chat.completion"),
        "choices": choices,
        "usage": chunks.usage(eos["usage"]),
        "timings": chunks.timings(eos),
        **({} if ask.n_prompt_logprobs is None else chunks.prompt_logprobs(eos["prompt_logprobs"])),
    }


def message_object(message: Message, has_functions: bool = False) -> dict[str, Any]:
    """Return an assistant's message. Content is null beside tool calls, as in OpenAI's answers. `has_functions`: write
    a call in OpenAI's older form.
    """
    made: dict[str, Any] = {
        "role": "assistant",
        "content": message.content if message.content or not message.tool_calls else None,
    }
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.tool_calls and has_functions:
        call = message.tool_calls[0]
        made["function_call"] = {"name": call.name, "arguments": call.arguments}
    elif message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    made["refusal"] = None
    return made


def finish_reason(end: Event, message: Message, has_functions: bool = False) -> str:
    """Return why an answer ended. If a stop text cut off a call's arguments, the reason is the stop text, because
    clients parse the arguments of an answer that ended with calls as JSON.
    """
    if end["reason"] == "length":
        return "length"
    if message.tool_calls and end.get("stop") and not message.tool_calls[-1].is_complete:
        return "stop"
    called = "function_call" if has_functions else "tool_calls"
    return called if message.tool_calls else "stop"


# ---- streamed


class _Stream:
    """One streamed request: a parser for each answer, and its chunks as they are generated."""

    def __init__(self, exchange: Exchange, shape: Shape, prompt: Prompt, ask: Ask, pace: Pace) -> None:
        self._exchange = exchange
        self._shape = shape
        self._ask = ask
        self._pace = pace
        self._parsers: list[Parser] = [prompt.parser() for _ in range(ask.n)]
        self._messages = [Message() for _ in range(ask.n)]  # only the tool calls are kept; nothing reads the rest
        self._begun: set[int] = set()
        self._held = {} if ask.n_logprobs is None else {index: Held() for index in range(ask.n)}
        self._chunk = chunks.ChatChunks(shape)

    async def run(self, generation: Generation) -> None:
        await self._exchange.start_sse()
        await relay(self._exchange, [generation], self._encode, lambda: DONE)

    def _encode(self, _: int, event: Event) -> bytes:
        """Return the chunks of an event. Raises: GatewayError."""
        kind, index = event["event"], event.get("index", 0)
        # Most events are plain text. They are handled inline, because a function call costs microseconds after a
        # model's step.
        if kind == "token" and index in self._begun and "logprobs" not in event and not self._pace.tells_tokens:
            diffs = self._parsers[index].feed(event["text"])
            if len(diffs) == 1 and diffs[0].content and not diffs[0].reasoning and not self._held:
                return self._chunk.content(index, diffs[0].content)
            return b"".join([self._diff(index, diff) for diff in diffs])
        out: list[bytes] = []
        if kind == "token":
            self._on_text(index, event["text"], event.get("logprobs"), out, **self._pace.token(event, index))
        elif kind == "progress":
            told = self._pace.read(event)
            if told and 0 not in self._begun:
                self._begin(0, out)
            out += [self._chunk.delta(0, {}, **told)] if told else []
        elif kind == "end":
            self._on_end(index, ended(event), out)
        else:
            note_end(self._exchange, event)
            ended(event)
            if self._ask.n == 1:
                self._on_end(0, event, out)
            if self._ask.wants_usage:
                out.append(self._chunk.usage(chunks.usage(event["usage"]), chunks.timings(event)))
        return b"".join(out)

    def _on_text(
        self, index: int, text: str, logprobs: list[Event] | None, out: list[bytes], is_final: bool = False, **more: Any
    ) -> None:
        if index not in self._begun:
            self._begin(index, out)
        if logprobs:
            self._held[index].add(logprobs)
        out += [self._diff(index, diff, **more) for diff in self._parsers[index].feed(text, is_final)]

    def _begin(self, index: int, out: list[bytes]) -> None:
        self._begun.add(index)
        out.append(self._chunk.role(index))
        if self._ask.echo:
            out.append(self._chunk.content(index, self._ask.echo))

    def _diff(self, index: int, diff: Diff, **more: Any) -> bytes:
        if not self._held and not more and diff.content and not diff.reasoning:
            return self._chunk.content(index, diff.content)
        if diff.tool >= 0:
            self._messages[index].add(diff)
        if diff.tool > 0 and self._ask.has_functions:  # the older form has room for one call
            return b""
        told = self._held[index].take(diff) if self._held else []
        delta = delta_object(diff, self._ask.has_functions)
        return self._chunk.delta(index, delta, chunks.logprobs(told) if told else None, **more)

    def _on_end(self, index: int, end: Event, out: list[bytes]) -> None:
        self._on_text(index, stop_told(end, self._ask.stops_told), end.get("logprobs"), out, is_final=True)
        reason = finish_reason(end, self._messages[index], self._ask.has_functions)
        more = {} if self._ask.wants_usage else {"timings": chunks.timings(end)}
        out.append(self._chunk.finish(index, reason, {}, **more))


def delta_object(diff: Diff, has_functions: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if diff.content:
        made["content"] = diff.content
    if diff.reasoning:
        made["reasoning_content"] = diff.reasoning
    if diff.tool >= 0:
        function: dict[str, str] = {"name": diff.tool_name} if diff.tool_name else {}
        if has_functions:
            made["function_call"] = {**function, "arguments": diff.tool_arguments}
            return made
        call: dict[str, Any] = {"index": diff.tool}
        if diff.tool_id or diff.tool_name:
            call |= {"id": diff.tool_id, "type": "function"}
        call["function"] = {**function, "arguments": diff.tool_arguments}
        made["tool_calls"] = [call]
    return made
