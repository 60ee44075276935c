"""llama-server's native `/completion` and `/infill`: its fields, its stream, its figures."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from uma_gateway import sse
from uma_gateway.apis.llama.lines import Limits, Lines
from uma_gateway.apis.openai import chunks
from uma_gateway.apis.openai.pace import Pace, progress_field
from uma_gateway.apis.openai.request import answers_wanted
from uma_gateway.body import array, boolean, integer, table, text
from uma_gateway.errors import invalid, unsupported
from uma_gateway.exchange import Exchange
from uma_gateway.fields import (
    MOST_LOGPROBS,
    PARAMS,
    RANDOM_SEED,
    allowed_tokens,
    most_tokens,
    names_in,
    need,
    sampling_fields,
)
from uma_gateway.generate import Plan, answers_of, begin, final, note_end, priority_fields, relay, send
from uma_gateway.generation import Generation
from uma_gateway.link import Event
from uma_gateway.model import Model
from uma_gateway.plain import MOST_PROMPTS, Prompt, constraint_field, prompt_field, read_prompts

SHOWN = (  # settings that llama-server shows with a value even if the request does not set them
    "temperature", "top_k", "top_p", "min_p", "typical_p", "min_keep", "top_n_sigma", "xtc_probability",
    "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "frequency_penalty", "presence_penalty", "repeat_penalty",
    "dry_multiplier", "mirostat", "adaptive_target", "ignore_eos", "post_sampling_probs",
)  # fmt: skip


async def on_completion(exchange: Exchange) -> None:
    """Answer one prompt, or an array of several, with `n_cmpl` answers to each. Several answers come as an array, or as
    pieces with an `index`.
    """
    body = await exchange.json()
    prompts = await exchange.read(read_prompts, body)
    await exchange.while_connected(_answer(exchange, body, prompts))


async def on_infill(exchange: Exchange) -> None:
    """Fill in between `input_prefix` and `input_suffix`, with other files in `input_extra`; `prompt` follows the
    prefix. Editors send empty requests, with `n_predict` 0, so that their other files are read in advance.
    """
    body = await exchange.json()
    prefix, suffix, prompt = (text(body, name) or "" for name in ("input_prefix", "input_suffix", "prompt"))
    if body.get("input_prefix") is None and body.get("input_suffix") is None and not prompt:
        raise invalid("`input_prefix` or `input_suffix` is required", "input_prefix")
    extra = [
        {"filename": file.get("filename") or "", "text": file["text"]}
        for file in array(body, "input_extra")
        if _is_file(file)
    ]
    infill = {"prefix": prefix + prompt, "suffix": suffix, **({"extra": extra} if extra else {})}
    await exchange.while_connected(_answer(exchange, body, [{"infill": infill}]))


def _is_file(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise invalid("`input_extra` must hold objects with a `text`", "input_extra")
    return True


def _plan(
    exchange: Exchange, body: dict[str, Any], prompt: Prompt | dict[str, Any], model: Model, number: int = 0
) -> Plan:
    """Plan one request. `prompt`: one prompt, or the field of an infill. `number`: which of its answers, if each is
    requested by itself. The plan's context is its limits.
    """
    answers, limits, is_stream = exchange.gateway.config.answers, Limits.of(body), boolean(body, "stream")
    fields = {
        **sampling_fields(body, model, answers),
        **priority_fields(exchange, body),
        **(prompt if isinstance(prompt, dict) else prompt_field(model, prompt)),
        "max_tokens": most_tokens(body, ("n_predict", "max_tokens"), model, answers, 0),
        "stream": is_stream or limits.are_any,
        "model": model.fingerprint,
    }
    if "infill" in fields:
        need(model, "infill", "input_prefix")
        if not model.has_infill:
            raise unsupported("the model has no tokens for filling in", "input_prefix")
    name = "logprobs" if body.get("n_probs") is None else "n_probs"
    n_probs = integer(body, name, 0, MOST_LOGPROBS) or 0
    # without log probabilities a stream has only the last token of each piece of text
    if n_probs or boolean(body, "return_tokens"):
        need(model, "logprobs", name if n_probs else "return_tokens")
        fields["logprobs"] = n_probs
    if is_stream:
        fields |= progress_field(body, model)
    if limits.are_any:
        if "seed" in fields:
            fields["seed"] = (fields["seed"] + number) & 0xFFFFFFFF  # as the daemon does with several answers
    elif (n := _answers_wanted(body)) > 1:
        need(model, "n", "n_cmpl")
        fields["n"] = n
    form = (table(body, "json_schema") or True) if body.get("json_schema") is not None else None
    fields |= constraint_field(model, form, text(body, "grammar") or "", "json_schema")
    names = {**names_in(body), "constraint": "grammar" if form is None else "json_schema"}
    return Plan(model, allowed_tokens(fields, body, model), limits, names)


def _answers_wanted(body: dict[str, Any]) -> int:
    """Return how many answers each prompt gets. Raises: GatewayError."""
    return answers_wanted(body, "n_cmpl" if body.get("n_cmpl") is not None else "n")


async def _answer(exchange: Exchange, body: dict[str, Any], prompts: Sequence[Prompt | dict[str, Any]]) -> None:
    is_stream, has_tokens = boolean(body, "stream"), boolean(body, "return_tokens")
    wanted = [name for name in array(body, "response_fields") if isinstance(name, str)]
    # each answer ends at its own line, but the daemon ends only whole requests: so each answer gets its own request
    n = _answers_wanted(body) if Limits.of(body).are_any else 1
    prompts = [prompt for prompt in prompts for _ in range(n)]
    if len(prompts) > MOST_PROMPTS:
        raise invalid(f"`prompt` may hold {MOST_PROMPTS // n} prompts with {n} answers each", "prompt")

    async def plan_for(model: Model) -> Plan:
        return _plan(exchange, body, prompts[0], model)

    async with contextlib.AsyncExitStack() as stack:
        plan, first = await stack.enter_async_context(begin(exchange, plan_for))
        plans, generations = [plan], [first]
        for i, prompt in enumerate(prompts[1:], 1):
            plans.append(_plan(exchange, body, prompt, plan.model, i % n))
            generations.append(await stack.enter_async_context(await send(exchange, plans[-1], f".{i}")))
        if is_stream:
            await _stream(exchange, generations, plans, wanted, [Pace(body) for _ in plans], has_tokens)
            return
        made = [
            selected(whole, wanted)
            for i, generation in enumerate(generations)
            for whole in await _whole(exchange, generation, i, plans[i], has_tokens)
        ]
        await exchange.send_json(made if len(made) > 1 else made[0])


async def _whole(
    exchange: Exchange, generation: Generation, number: int, plan: Plan, has_tokens: bool
) -> list[dict[str, Any]]:
    """Return the answers to one prompt."""
    eos = await (_followed(generation, Lines(plan.context)) if plan.context.are_any else final(generation))
    note_end(exchange, eos)
    n, made = plan.fields.get("n", 1), []
    for answer in answers_of(eos):
        text = answer.get("text", "")
        whole = last_object(plan, answer, text, number * n + answer["index"], "\n" in text)
        whole["generation_settings"]["stream"] = False  # the request to the daemon may differ
        if has_tokens:
            whole["tokens"] = _ids(answer)
        made.append(whole | _probabilities(answer, plan))
    return made


def _told(lines: Lines, generation: Generation, text: str) -> str:
    """Return the part of a token's text that is sent to the client. Ends the answer if it meets a limit."""
    was_over = lines.is_over
    told = lines.push(text, time.perf_counter())
    if lines.is_over and not was_over:
        generation.cancel()
    return told


async def _followed(generation: Generation, lines: Lines) -> Event:
    """Read an answer that has line limits but is not streamed to the client. Returns its end, with its text. Raises:
    GatewayError, for a bad end too.
    """
    parts: list[str] = []
    logprobs: list[Event] = []
    while True:
        for event in await generation.events():
            if not lines.is_over:
                logprobs += event.get("logprobs") or ()
            if event["event"] == "token":
                parts.append(_told(lines, generation, event["text"]))
            if event["event"] == "eos":
                return {**lines.ended(event), "text": "".join(parts), "logprobs": logprobs}


async def _stream(
    exchange: Exchange,
    generations: list[Generation],
    plans: list[Plan],
    wanted: list[str],
    paces: list[Pace],
    has_tokens: bool,
) -> None:
    await exchange.start_sse()
    n = plans[0].fields.get("n", 1)
    followed = [Lines(plan.context) for plan in plans for _ in range(n)]

    def encode(number: int, event: Event) -> bytes:
        index, plan = number * n + event.get("index", 0), plans[number]
        lines = followed[index]
        if event["event"] in ("eos", "end"):
            end = lines.ended(event)
            if event["event"] == "eos":
                note_end(exchange, end)
                if n > 1:  # each answer has had its own end
                    return b""
            last = last_object(plan, end, "", index, lines.has_new_line)
            if not lines.is_over:  # the last tokens may have no text
                last |= _probabilities(end, plan)
                if has_tokens:
                    last["tokens"] = _ids(end)
            return sse.data(selected(last, wanted))
        if event["event"] == "progress":
            told = paces[number].read(event)
            return sse.data({**chunk_of(index, "", [], 0), **told}) if told else b""
        if event["event"] != "token" or lines.is_over:
            return b""
        text = _told(lines, generations[number], event["text"])
        tokens = _ids(event) or [event["token_id"]]
        lines.n_tokens += event.get("n_tokens", 1)
        chunk = {**chunk_of(index, text, tokens, lines.n_tokens), **paces[number].token(event, index)}
        return sse.data({**chunk, **_probabilities(event, plan)})

    await relay(exchange, generations, encode)


def _ids(event: Event) -> list[int]:
    """Return the tokens of which an event has log probabilities."""
    return [entry["id"] for entry in event.get("logprobs") or ()]


def _probabilities(event: Event, plan: Plan) -> dict[str, Any]:
    """Return the field for the tokens of which an event has log probabilities, if the request wants it."""
    if not (event.get("logprobs") and plan.fields["logprobs"]):
        return {}
    return {"completion_probabilities": [probability(entry, plan) for entry in event["logprobs"]]}


def chunk_of(index: int, content: str, tokens: list[int], n_tokens: int) -> dict[str, Any]:
    """Return a piece of a stream that is not its last."""
    return {
        "index": index,
        "content": content,
        "tokens": tokens,
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": n_tokens,
        "tokens_evaluated": 0,
    }


def last_object(plan: Plan, eos: Event, content: str, index: int, has_new_line: bool) -> dict[str, Any]:
    """Return the whole answer, or the last piece of a stream."""
    usage, stop = eos["usage"], eos.get("stop") or {}
    kind = "limit" if eos["reason"] == "length" else "word" if "text" in stop else "eos"
    is_full = kind == "limit" and usage["prompt_tokens"] + usage["completion_tokens"] >= plan.model.n_ctx
    prompt = plan.fields.get("prompt")
    return {
        "index": index,
        "content": content,
        "tokens": [],
        "id_slot": -1,
        "stop": True,
        "model": plan.model.name,
        "tokens_predicted": usage["completion_tokens"],
        "tokens_evaluated": usage["prompt_tokens"],
        "generation_settings": settings(plan),
        "prompt": prompt if isinstance(prompt, str) else "",
        "has_new_line": has_new_line,
        "truncated": is_full or bool(usage.get("dropped_tokens")),  # the context was too small
        "stop_type": kind,
        "stopping_word": stop.get("text", ""),
        "tokens_cached": max(0, usage["prompt_tokens"] + usage["completion_tokens"] - 1),  # in the KV at the end
        "timings": chunks.timings(eos),
    }


def settings(plan: Plan) -> dict[str, Any]:
    """Return the settings of the answer, as far as the request and the gateway set them."""
    fields = plan.fields
    made = {param.name: fields.get(param.wire or param.name, param.neutral) for param in PARAMS if param.name in SHOWN}
    return {
        **made,
        "seed": fields.get("seed", RANDOM_SEED),
        "n_predict": fields["max_tokens"],
        "max_tokens": fields["max_tokens"],
        "stop": fields.get("stop", []),
        "logit_bias": [
            {"token": token, "bias": None if bias is False else bias} for token, bias in fields.get("logit_bias", ())
        ],
        "n_probs": fields.get("logprobs", 0),
        "grammar": (fields.get("constraint") or {}).get("gbnf", ""),
        "lora": [
            {"id": plan.model.adapters.index(each["id"]), "scale": each.get("scale", 1.0)}
            for each in fields.get("lora", ())
        ],
        "stream": fields["stream"],
    }


def probability(entry: Event, plan: Plan) -> dict[str, Any]:
    """Return one token with its alternatives. After the samplers there are probabilities instead of logarithms."""
    is_after = bool(plan.fields.get("post_sampling_probs"))
    return {
        **_token(entry, is_after),
        "top_probs" if is_after else "top_logprobs": [_token(other, is_after) for other in entry["top"]],
    }


def _token(entry: Event, is_after: bool) -> dict[str, Any]:
    made = {"id": entry["id"], "token": bytes(entry["bytes"]).decode("utf-8", "replace"), "bytes": entry["bytes"]}
    return {**made, "prob": math.exp(entry["logprob"])} if is_after else {**made, "logprob": entry["logprob"]}


def selected(whole: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    """Return the `response_fields` that the request names, under the names that it uses; a slash goes into an object.

    Returns all fields if it names none.
    """
    if not wanted:
        return whole
    made: dict[str, Any] = {}
    for path in wanted:
        value: Any = whole
        *outer, name = path.split("/")
        for key in outer:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and name in value:
            made[path] = value[name]
    return made
