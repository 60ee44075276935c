"""`/v1/fim/completions`: Mistral's endpoint for filling in, whose answers have the form of a chat's."""

from __future__ import annotations

from typing import Any

from uma_gateway.apis.openai import chunks
from uma_gateway.apis.openai.chat import message_object
from uma_gateway.apis.openai.request import Shape
from uma_gateway.asking import Ask, plan_prompt
from uma_gateway.body import boolean, text
from uma_gateway.chat.diff import Message
from uma_gateway.errors import invalid
from uma_gateway.exchange import Exchange
from uma_gateway.fields import most_tokens
from uma_gateway.generate import Plan, begin, ended, final, note_end, relay
from uma_gateway.generation import Generation
from uma_gateway.link import Event
from uma_gateway.model import Model
from uma_gateway.parsing import Plain
from uma_gateway.plain import gap_field
from uma_gateway.prompting import Chat, Prompt
from uma_gateway.sse import DONE


async def on_fim(exchange: Exchange) -> None:
    """Fill in between `prompt` and `suffix`, or continue `prompt` if there is no `suffix`."""
    body = await exchange.json()
    prompt, suffix = text(body, "prompt"), text(body, "suffix") or ""
    if prompt is None:
        raise invalid("`prompt` is required: a string", "prompt")
    await exchange.while_connected(_answer(exchange, body, prompt, suffix))


async def _answer(exchange: Exchange, body: dict[str, Any], prompt: str, suffix: str) -> None:
    ask = Ask(Chat([]), is_stream=boolean(body, "stream"))

    async def plan_for(model: Model) -> Plan:
        written = Prompt(gap_field(model, prompt, suffix), [], Plain)
        max_tokens = most_tokens(body, ("max_tokens",), model, exchange.gateway.config.answers)
        return plan_prompt(exchange, model, ask, written, body, max_tokens)

    async with begin(exchange, plan_for) as (plan, generation):
        shape = Shape.of(plan.model, "fim-", body)
        if ask.is_stream:
            await _stream(exchange, generation, shape)
            return
        eos = await final(generation)
        note_end(exchange, eos)
        message = message_object(Message(eos.get("text", "")))
        choice = {"index": 0, "message": message, "finish_reason": eos["reason"]}
        usage = chunks.usage(eos["usage"])
        await exchange.send_json({**shape.fields("chat.completion"), "choices": [choice], "usage": usage})


async def _stream(exchange: Exchange, generation: Generation, shape: Shape) -> None:
    """Stream the answer. Its last chunk has a text, without which Tabby fails, and the usage, for which Mistral's
    clients do not ask.
    """
    chunk = chunks.ChatChunks(shape)

    def encode(_: int, event: Event) -> bytes:
        if event["event"] == "token":
            return chunk.content(0, event["text"])
        if event["event"] != "eos":
            return b""
        note_end(exchange, event)
        return chunk.finish(0, ended(event)["reason"], {"content": ""}, usage=chunks.usage(event["usage"]))

    await exchange.start_sse()
    await exchange.write(chunk.role(0))
    await relay(exchange, [generation], encode, lambda: DONE)
