"""`/v1/completions`: OpenAI's older endpoint, for prompts that are texts or tokens."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any, NamedTuple

from uma_gateway import sse
from uma_gateway.apis.openai import chunks
from uma_gateway.apis.openai.pace import Pace, progress_field
from uma_gateway.apis.openai.request import (
    MOST_ANSWERS,
    Shape,
    answers_wanted,
    read_prompt_logprobs,
    wanted_form,
)
from uma_gateway.body import boolean, integer, table, text
from uma_gateway.errors import invalid
from uma_gateway.exchange import Exchange
from uma_gateway.fields import MOST_LOGPROBS, allowed_tokens, most_tokens, names_in, need, sampling_fields, stops_told
from uma_gateway.generate import (
    Plan,
    answers_of,
    ended,
    final,
    note_end,
    planned,
    priority_fields,
    relay,
    send,
    stop_told,
)
from uma_gateway.generation import Generation
from uma_gateway.link import Event
from uma_gateway.model import Model
from uma_gateway.plain import Prompt, constraint_field, gap_field, read_prompts

DEFAULT_MAX_TOKENS = 16  # OpenAI's


@dataclass
class Ask:
    """A request, apart from its sampling."""

    prompts: list[Prompt]
    is_stream: bool
    wants_usage: bool
    n: int
    best_of: int
    n_logprobs: int | None  # alternatives for each token; None: no log probabilities
    n_prompt_logprobs: int | None  # vLLM's field: the same for the prompt's tokens, in its own form
    has_echo: bool
    suffix: str
    stops_told: frozenset[str]


async def on_completions(exchange: Exchange) -> None:
    body = await exchange.json()
    ask = await exchange.read(_read, body)
    await exchange.while_connected(_answer(exchange, body, ask))


def _read(body: dict[str, Any]) -> Ask:
    """Read a request. Raises: GatewayError."""
    n = answers_wanted(body)
    best_of = integer(body, "best_of") or n
    is_stream = boolean(body, "stream")
    if not n <= best_of <= MOST_ANSWERS:
        raise invalid(f"`best_of` must be from `n` to {MOST_ANSWERS}", "best_of")
    if is_stream and best_of > n:
        raise invalid("`best_of` chooses among whole answers: it cannot be streamed", "best_of")
    prompts, has_echo = read_prompts(body), boolean(body, "echo")
    if has_echo and any(isinstance(prompt, list) and any(type(item) is str for item in prompt) for prompt in prompts):
        raise invalid("`echo` needs prompts that are texts, or token ids alone", "echo")
    return Ask(
        prompts=prompts,
        is_stream=is_stream,
        wants_usage=boolean(table(body, "stream_options"), "include_usage"),
        n=n,
        best_of=best_of,
        n_logprobs=_logprobs_wanted(body),
        n_prompt_logprobs=read_prompt_logprobs(body),
        has_echo=has_echo,
        suffix=text(body, "suffix") or "",
        stops_told=stops_told(body),
    )


def _logprobs_wanted(body: dict[str, Any]) -> int | None:
    value = body.get("logprobs")
    if value is None or value is False:
        return integer(body, "n_probs", 0, MOST_LOGPROBS) or None
    if value is True:  # as chat clients send it
        return integer(body, "top_logprobs", 0, MOST_LOGPROBS) or 0
    return integer(body, "logprobs", 0, MOST_LOGPROBS)


async def _answer(exchange: Exchange, body: dict[str, Any], ask: Ask) -> None:
    async def plans_for(model: Model) -> tuple[Model, list[Plan]]:
        return model, [_plan(exchange, body, ask, model, prompt) for prompt in ask.prompts]

    model, plans = await planned(exchange, plans_for)
    shape = Shape.of(model, "cmpl-", body)
    echoes = [await _echo(exchange, model, prompt) if ask.has_echo else Echo() for prompt in ask.prompts]
    generations: list[Generation] = []
    try:
        for i, plan in enumerate(plans):
            generations.append(await send(exchange, plan, f".{i}" if i else ""))
        if ask.is_stream:
            await _Stream(exchange, shape, ask, echoes, [Pace(body) for _ in plans]).run(generations)
        else:
            await exchange.send_json(await _whole(exchange, shape, ask, echoes, generations))
    finally:
        for generation in generations:
            generation.close()


def _plan(exchange: Exchange, body: dict[str, Any], ask: Ask, model: Model, prompt: Prompt) -> Plan:
    answers = exchange.gateway.config.answers
    form = wanted_form(body)
    has_limit = body.get("max_tokens") is not None or body.get("n_predict") is not None
    fields = {
        **sampling_fields(body, model, answers),
        **priority_fields(exchange, body),
        **gap_field(model, prompt, ask.suffix),
        "max_tokens": most_tokens(body, ("max_tokens", "n_predict"), model, answers, 0)
        if has_limit
        else DEFAULT_MAX_TOKENS,
        "stream": ask.is_stream,
        **constraint_field(model, form.schema, text(body, "grammar") or "", form.param, form.constraint),
    }
    if ask.is_stream:
        fields |= progress_field(body, model)
    if ask.n_logprobs is not None:
        need(model, "logprobs", "logprobs")
        if ask.has_echo:
            need(model, "prompt_logprobs", "echo")
            fields["prompt_logprobs"] = ask.n_logprobs
        fields["logprobs"] = ask.n_logprobs
    if ask.n_prompt_logprobs is not None:
        need(model, "prompt_logprobs", "prompt_logprobs")
        fields["prompt_logprobs"] = max(ask.n_prompt_logprobs, fields.get("prompt_logprobs", 0))
    if ask.best_of > 1:
        need(model, "n", "n")
        fields["n"] = ask.n
        if ask.best_of > ask.n:
            need(model, "best_of", "best_of")
            fields["best_of"] = ask.best_of
    names = {**names_in(body), "constraint": form.param if form.is_any else "grammar"}
    return Plan(model, allowed_tokens(fields, body, model), names=names)


class Echo(NamedTuple):
    """The text before an answer."""

    text: str = ""
    n_added: int = 0  # tokens that the model's tokeniser adds before a text; they are not part of the echo

    def start(self, entries: list[Event]) -> int:
        """Return the place in the text at which the first prompt token begins: below 0 if the tokeniser writes a space
        first.
        """
        return len(self.text) - len(b"".join(bytes(entry["bytes"]) for entry in entries).decode("utf-8", "replace"))


async def _echo(exchange: Exchange, model: Model, prompt: Prompt) -> Echo:
    """Return what to echo of a prompt. Raises: GatewayError."""
    if isinstance(prompt, str):
        # an empty prompt becomes the token that begins a text
        return Echo(prompt, int(not prompt or (model.props["add_bos"] and "bos" in model.props["special"])))
    return Echo(str((await exchange.gateway.daemon.call("detokenize", tokens=prompt))["content"]))


# ---- whole


async def _whole(
    exchange: Exchange, shape: Shape, ask: Ask, echoes: list[Echo], generations: list[Generation]
) -> dict[str, Any]:
    """Return the answer that is not streamed. Raises: GatewayError."""
    choices: list[dict[str, Any]] = []
    finals = [await final(generation) for generation in generations]
    for number, eos in enumerate(finals):
        note_end(exchange, eos)
        for answer in answers_of(eos):
            choices.append(
                {
                    "text": echoes[number].text + answer.get("text", "") + stop_told(answer, ask.stops_told),
                    "index": number * ask.n + answer["index"],
                    "logprobs": _all_arrays(echoes[number], _cut(eos, ask.n_logprobs) if ask.has_echo else [], answer)
                    if ask.n_logprobs is not None
                    else None,
                    "finish_reason": answer["reason"],
                    **(
                        {}
                        if ask.n_prompt_logprobs is None
                        else chunks.prompt_logprobs(_cut(eos, ask.n_prompt_logprobs))
                    ),
                }
            )
    return {
        **shape.fields("text_completion"),
        "choices": choices,
        "usage": chunks.usage(_summed(finals)),
        "timings": chunks.timings(finals[-1]),
    }


def _cut(eos: Event, n_top: int) -> list[Event]:
    """Cut the alternatives of the prompt's tokens to this number: echo and vLLM's field may ask for different ones."""
    return [{**entry, "top": entry.get("top", [])[:n_top]} for entry in eos["prompt_logprobs"]]


def _all_arrays(echo: Echo, prompt: list[Event], answer: Event) -> dict[str, Any]:
    """Return the arrays of the answer's tokens, after those of the prompt's tokens if they are echoed."""
    echoed = prompt[echo.n_added :]
    return _Offsets(echo.start(echoed)).arrays([*echoed, *(answer.get("logprobs") or ())])


def _summed(finals: list[Event]) -> dict[str, int]:
    names = {name for eos in finals for name in eos["usage"]}
    return {name: sum(eos["usage"].get(name, 0) for eos in finals) for name in names}


# ---- streamed


class _Stream:
    """One streamed request. Its answers, to one prompt or several, are told apart by their index."""

    def __init__(self, exchange: Exchange, shape: Shape, ask: Ask, echoes: list[Echo], paces: list[Pace]) -> None:
        self._exchange = exchange
        self._paces = paces
        self._ask = ask
        self._echoes = echoes
        self._offsets: dict[int, _Offsets] = {}
        # log probabilities of the prompts' tokens, until their echo is sent
        self._prompts: list[list[Event]] = [[] for _ in echoes]
        self._are_echoed = [not ask.has_echo] * len(echoes)
        self._finals: list[Event] = []
        self._common = shape.fields("text_completion")

    async def run(self, generations: list[Generation]) -> None:
        await self._exchange.start_sse()
        if self._ask.n_logprobs is None:
            await self._exchange.write(
                b"".join(chunk for number in range(len(self._echoes)) for chunk in self._echo(number))
            )
        await relay(
            self._exchange,
            generations,
            lambda number, event: b"".join(self._on_event(number, event)),
            lambda: self._usage() + sse.DONE,
        )

    def _on_event(self, number: int, event: Event) -> list[bytes]:
        """Return the chunks of an event. Raises: GatewayError."""
        kind, index = event["event"], number * self._ask.n + event.get("index", 0)
        if kind == "prompt":
            self._prompts[number] += event["logprobs"]
            return []
        if kind == "progress":
            told = self._paces[number].read(event)
            return [self._chunk(index, "", **told)] if told else []
        echo = self._echo(number)
        if kind == "token":
            more = self._paces[number].token(event, index)
            return [*echo, self._chunk(index, event["text"], event.get("logprobs"), **more)]
        if kind == "end":
            stop = stop_told(event, self._ask.stops_told)
            return [*echo, self._chunk(index, stop, event.get("logprobs"), ended(event)["reason"])]
        note_end(self._exchange, event)
        self._finals.append(ended(event))
        if self._ask.n > 1:
            return echo
        more = {} if self._ask.wants_usage else {"timings": chunks.timings(event)}
        stop = stop_told(event, self._ask.stops_told)
        return [*echo, self._chunk(index, stop, event.get("logprobs"), event["reason"], **more)]

    def _echo(self, number: int) -> list[bytes]:
        """Return the chunks that echo a prompt, once; with its tokens' log probabilities if they were requested."""
        if self._are_echoed[number]:
            return []
        self._are_echoed[number] = True
        echo, self._prompts[number] = self._prompts[number][self._echoes[number].n_added :], []
        indices = range(number * self._ask.n, (number + 1) * self._ask.n)
        for index in indices:
            self._offsets[index] = _Offsets(self._echoes[number].start(echo))
        return [self._chunk(index, self._echoes[number].text, echo) for index in indices]

    def _chunk(
        self, index: int, text: str, logprobs: list[Event] | None = None, reason: str | None = None, **more: Any
    ) -> bytes:
        choice: dict[str, Any] = {"text": text, "index": index, "logprobs": None, "finish_reason": reason}
        if logprobs and self._ask.n_logprobs is not None:
            choice["logprobs"] = self._offsets.setdefault(index, _Offsets(0)).arrays(logprobs)
        return sse.data({"choices": [choice], **self._common, **more})

    def _usage(self) -> bytes:
        if not self._ask.wants_usage:
            return b""
        return sse.data(
            {
                "choices": [],
                **self._common,
                "usage": chunks.usage(_summed(self._finals)),
                "timings": chunks.timings(self._finals[-1]),
            }
        )


class _Offsets:
    """Log probabilities in the older API's form: parallel arrays, with each token's place in the text."""

    def __init__(self, start: int) -> None:
        self._at = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # tokens may hold parts of a character

    def arrays(self, entries: list[Event]) -> dict[str, Any]:
        made: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in entries:
            token = _text_of(entry)
            made["tokens"].append(token)
            made["token_logprobs"].append(entry["logprob"])
            made["top_logprobs"].append(_likeliest(entry))
            made["text_offset"].append(max(0, self._at))
            self._at += len(self._decoder.decode(bytes(entry["bytes"])))
        return made


def _likeliest(entry: Event) -> dict[str, float] | None:
    """Return the likeliest tokens and, as in OpenAI's answers, always the token itself; None for a prompt's first
    token.
    """
    if entry["logprob"] is None:
        return None
    return {_text_of(other): other["logprob"] for other in (*entry.get("top", ()), entry)}


def _text_of(entry: Event) -> str:
    """Return a token's text, or its bytes as OpenAI writes them if they are not whole characters. Alternatives are told
    apart by their texts, and all parts of characters would have the same one.
    """
    data = bytes(entry["bytes"])
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
