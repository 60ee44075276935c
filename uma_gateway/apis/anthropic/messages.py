"""`/v1/messages`: answers as blocks, whole or as a stream of events, and `/v1/messages/count_tokens`."""

from __future__ import annotations

import secrets
from typing import Any

from uma_gateway import sse
from uma_gateway.apis.anthropic.request import check_answer, read_request
from uma_gateway.asking import count_tokens, plan_chat
from uma_gateway.chat.diff import Diff, Message
from uma_gateway.exchange import Exchange
from uma_gateway.fields import model_name, most_tokens, stop_texts
from uma_gateway.generate import Plan, begin, ended, final, note_end, relay
from uma_gateway.generation import Generation
from uma_gateway.link import Event
from uma_gateway.model import Model
from uma_gateway.parsing import Parser, whole

Block = dict[str, Any]
SIGNATURE = "unsigned"  # nothing is signed here, but clients send a thought without a signature back as text
UNCOUNTED: Event = {"prompt_tokens": 0, "cached_tokens": 0}  # for a daemon that does not report how it reads the prompt


async def on_messages(exchange: Exchange) -> None:
    body = await exchange.json()
    check_answer(body)
    ask = await exchange.read(read_request, body)
    stops = stop_texts(body, "stop_sequences")

    async def answer() -> None:
        async def plan_for(model: Model) -> Plan:
            max_tokens = most_tokens(body, ("max_tokens",), model, exchange.gateway.config.answers)
            plan = await plan_chat(exchange, model, ask, {**body, "stop": stops}, max_tokens)
            if ask.is_stream and model.can("prompt_progress"):
                plan.fields["prompt_progress"] = True  # for message_start, which counts the prompt's tokens
            return plan._replace(names={**plan.names, "stop": "stop_sequences"})

        async with begin(exchange, plan_for) as (plan, generation):
            shape = Shape(model_name(body, plan.model), stops)
            parser = plan.context.parser()
            if ask.is_stream:
                await _stream(exchange, generation, shape, parser)
            else:
                eos = await final(generation)
                note_end(exchange, eos)
                message = whole(parser, eos.get("text", ""))
                await exchange.send_json(
                    shape.message(blocks(message), shape.stop(eos, bool(message.tool_calls)), usage(eos["usage"]))
                )

    await exchange.while_connected(answer())


async def on_count_tokens(exchange: Exchange) -> None:
    body = await exchange.json()
    ask = await exchange.read(read_request, body)
    n_tokens = await count_tokens(exchange, await exchange.gateway.model(is_new=True), ask.chat)
    await exchange.send_json({"input_tokens": n_tokens})


class Shape:
    """Values that all parts of one answer carry."""

    def __init__(self, model: str, stops: list[str]) -> None:
        self.id = f"msg_{secrets.token_urlsafe(18)}"
        self._model, self._stops = model, stops

    def message(self, content: list[Block], stop: dict[str, Any], counts: dict[str, Any]) -> dict[str, Any]:
        made = {"id": self.id, "type": "message", "role": "assistant", "model": self._model}
        return {**made, "content": content, **stop, "usage": counts}

    def stop(self, eos: Event, has_calls: bool) -> dict[str, Any]:
        """Return why the answer ended. Texts that end every answer of this model's template are not reported as stop
        sequences.
        """
        stopped_by = (eos.get("stop") or {}).get("text")
        if eos["reason"] == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if stopped_by in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
        return {"stop_reason": "tool_use" if has_calls else "end_turn", "stop_sequence": None}


def usage(counts: Event) -> dict[str, Any]:
    """Return the token counts. Tokens from the cache are counted separately, unlike in OpenAI's form."""
    n_cached = counts["cached_tokens"]
    n_read = counts["prompt_tokens"] - n_cached
    return {
        "input_tokens": n_read,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": counts.get("completion_tokens", 0),
        "output_tokens_details": {"thinking_tokens": counts.get("reasoning_tokens", 0)},
    }


def blocks(message: Message) -> list[Block]:
    made: list[Block] = []
    if message.reasoning:
        made.append({"type": "thinking", "thinking": message.reasoning, "signature": SIGNATURE})
    if message.content.strip() or (message.content and not message.tool_calls):
        made.append({"type": "text", "text": message.content})
    return made + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.values} for call in message.tool_calls
    ]


# ---- streamed


async def _stream(exchange: Exchange, generation: Generation, shape: Shape, parser: Parser) -> None:
    """Stream the answer. The first event waits until the first piece of the prompt is read, because many clients look
    for the number of prompt tokens only there.
    """
    await exchange.start_sse()
    writer = StreamWriter(shape)
    await relay(
        exchange,
        [generation],
        lambda _, event: _event_bytes(exchange, writer, parser, event),
        failed=lambda error: sse.event("error", exchange.error_object(error)),
    )


def _event_bytes(exchange: Exchange, writer: StreamWriter, parser: Parser, event: Event) -> bytes:
    """Return the bytes of an event. Raises: GatewayError."""
    if event["event"] == "progress":
        return writer.start(event)
    if event["event"] == "token":
        return writer.start() + writer.diffs(parser.feed(event["text"]))
    note_end(exchange, event)
    ended(event)
    return writer.start(event["usage"]) + writer.diffs(parser.feed("", True)) + writer.end(event)


def _event(name: str, **fields: Any) -> bytes:
    return sse.event(name, {"type": name, **fields})


class StreamWriter:
    """The events of one message, in which each part of the answer is a block."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._has_begun = False
        self._n_blocks = 0
        self._open: str | int = ""  # thinking, text, or the number of a tool call; "": none
        self._blanks = ""  # white space that belongs to the text only if more text follows
        self._has_text = False
        self._has_calls = False

    def start(self, counts: Event = UNCOUNTED) -> bytes:
        """Return the first event, if it was not returned yet. `counts`: of the prompt's tokens."""
        if self._has_begun:
            return b""
        self._has_begun = True
        stop = {"stop_reason": None, "stop_sequence": None}
        told = {**usage(counts), "output_tokens": 0}
        return _event("message_start", message=self._shape.message([], stop, told))

    def diffs(self, diffs: list[Diff]) -> bytes:
        return b"".join(part for diff in diffs for part in self._diff(diff))

    def _diff(self, diff: Diff) -> list[bytes]:
        out: list[bytes] = []
        if diff.reasoning:
            out += self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            out.append(self._delta({"type": "thinking_delta", "thinking": diff.reasoning}))
        if diff.content:
            out += self._text(diff.content)
        if diff.tool >= 0:
            if diff.tool_name:
                self._blanks = ""
                out += self._enter(
                    diff.tool, {"type": "tool_use", "id": diff.tool_id, "name": diff.tool_name, "input": {}}
                )
                self._has_calls = True
            if diff.tool_arguments:
                out.append(self._delta({"type": "input_json_delta", "partial_json": diff.tool_arguments}))
        return out

    def _text(self, content: str) -> list[bytes]:
        content = self._blanks + content
        if self._open != "text" and not content.strip():
            self._blanks = content
            return []
        self._blanks = ""
        self._has_text = True
        return self._say(content)

    def _say(self, content: str) -> list[bytes]:
        return [
            *self._enter("text", {"type": "text", "text": ""}),
            self._delta({"type": "text_delta", "text": content}),
        ]

    def _enter(self, part: str | int, block: Block) -> list[bytes]:
        if self._open == part:
            return []
        out = self._leave()
        self._open = part
        out.append(_event("content_block_start", index=self._n_blocks, content_block=block))
        return out

    def _leave(self) -> list[bytes]:
        if self._open == "":
            return []
        out = [self._delta({"type": "signature_delta", "signature": SIGNATURE})] if self._open == "thinking" else []
        self._open = ""
        self._n_blocks += 1
        return [*out, _event("content_block_stop", index=self._n_blocks - 1)]

    def _delta(self, delta: Block) -> bytes:
        return _event("content_block_delta", index=self._n_blocks, delta=delta)

    def end(self, eos: Event) -> bytes:
        out: list[bytes] = []
        if self._blanks and not self._has_text and not self._has_calls:  # an answer of only white space is a text too
            out += self._say(self._blanks)
        stop = self._shape.stop(eos, self._has_calls)
        last = [_event("message_delta", delta=stop, usage=usage(eos["usage"])), _event("message_stop")]
        return b"".join([*out, *self._leave(), *last])
