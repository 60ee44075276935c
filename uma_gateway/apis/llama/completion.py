"""llama-server's native `/completion` and `/infill`: its fields, its stream, its figures."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from uma_gateway import sse
from uma_gateway.apis.openai import chunks
from uma_gateway.daemon import Event, Generation
from uma_gateway.errors import GatewayError, from_daemon, invalid, unsupported
from uma_gateway.exchange import Exchange
from uma_gateway.fields import (
    PARAMS,
    array,
    boolean,
    constraint_field,
    integer,
    most_tokens,
    need,
    sampling_fields,
    table,
    text,
)
from uma_gateway.generate import Plan, begin, ended, final, note_end, priority_fields, relay, send
from uma_gateway.model import Model

MOST_PROBS, MOST_PROMPTS = 20, 128
SHOWN = (  # of llama-server's settings those that have a value here without having been asked for
    "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent", "frequency_penalty", "presence_penalty", "repeat_penalty", "dry_multiplier", "mirostat",
    "adaptive_target",
    "ignore_eos", "post_sampling_probs",
)  # fmt: skip


async def on_completion(exchange: Exchange) -> None:
    """One prompt, or an array of several: their answers come as an array, or as pieces with an `index`."""
    body = await exchange.json()
    given = body.get("prompt")
    several = given if isinstance(given, list) and all(isinstance(item, str | list) for item in given) else []
    if len(several) > MOST_PROMPTS:
        raise invalid(f"`prompt` holds {len(several)} prompts, {MOST_PROMPTS} at most", "prompt")
    prompts = [_prompt(item) for item in several] or [_prompt(given)]
    await exchange.while_connected(_answer(exchange, body, prompts, len(prompts) > 1))


async def on_infill(exchange: Exchange) -> None:
    """Fill in between `input_prefix` and `input_suffix`, with other files in `input_extra`; `prompt` follows the
    prefix. Editors send empty ones, with `n_predict` 0, to have their other files read ahead.
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
    await exchange.while_connected(_answer(exchange, body, [{"infill": infill}], False))


def _is_file(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise invalid("`input_extra` must hold objects with a `text`", "input_extra")
    return True


def _prompt(value: Any) -> dict[str, Any]:
    """Raises: GatewayError."""
    if isinstance(value, str) and value:
        return {"prompt": value}
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return {"tokens": value}
    if isinstance(value, list) and value and all(type(item) in (int, str) for item in value):
        return {"prompt": value}
    raise invalid("`prompt` is required: a string, token ids, or an array of both", "prompt")


def _plan(exchange: Exchange, body: dict[str, Any], prompt: dict[str, Any], model: Model, is_stream: bool) -> Plan:
    answers = exchange.gateway.config.answers
    fields = {
        **sampling_fields(body, model, answers),
        **priority_fields(exchange, body),
        **prompt,
        "max_tokens": most_tokens(body, ("n_predict", "max_tokens"), model, answers, 0),
        "stream": is_stream,
        "model": model.fingerprint,
    }
    if "infill" in prompt:
        need(model, "infill", "input_prefix")
        if not model.has_infill:
            raise unsupported("the model has no tokens for filling in", "input_prefix")
    n_probs = integer(body, "n_probs") or 0
    if not 0 <= n_probs <= MOST_PROBS:
        raise invalid(f"`n_probs` goes from 0 to {MOST_PROBS}", "n_probs")
    if n_probs:
        need(model, "logprobs", "n_probs")
        fields["logprobs"] = n_probs
    if is_stream and boolean(body, "return_progress"):
        need(model, "prompt_progress", "return_progress")
        fields["prompt_progress"] = True
    form = table(body, "json_schema") if body.get("json_schema") is not None else None
    return Plan(model, {**fields, **constraint_field(model, form, text(body, "grammar") or "", "json_schema")})


async def _answer(exchange: Exchange, body: dict[str, Any], prompts: list[dict[str, Any]], is_several: bool) -> None:
    is_stream = boolean(body, "stream")
    wanted = [name for name in array(body, "response_fields") if isinstance(name, str)]

    async def plan_for(model: Model) -> Plan:
        return _plan(exchange, body, prompts[0], model, is_stream)

    async with contextlib.AsyncExitStack() as stack:
        plan, first = await stack.enter_async_context(begin(exchange, plan_for))
        plans, generations = [plan], [first]
        for i, prompt in enumerate(prompts[1:], 1):
            plans.append(_plan(exchange, body, prompt, plan.model, is_stream))
            generations.append(await stack.enter_async_context(await send(exchange, plans[-1], f".{i}")))
        if is_stream:
            await _stream(exchange, generations, plans, wanted)
        else:
            made = [selected(await _whole(exchange, one, i, plans[i]), wanted) for i, one in enumerate(generations)]
            await exchange.send_json(made if is_several else made[0])


async def _whole(exchange: Exchange, generation: Generation, index: int, plan: Plan) -> dict[str, Any]:
    eos = await final(generation)
    note_end(exchange, eos)
    text = eos.get("text", "")
    whole = last_object(plan, eos, text, index, "\n" in text)
    if eos.get("logprobs"):
        whole["completion_probabilities"] = [probability(entry, plan) for entry in eos["logprobs"]]
    return whole


async def _stream(exchange: Exchange, generations: list[Generation], plans: list[Plan], wanted: list[str]) -> None:
    await exchange.start_sse()
    n_tokens, has_new_line = [0] * len(plans), [False] * len(plans)

    def encode(index: int, event: Event) -> bytes:
        if event["event"] == "error":
            raise from_daemon(event)
        if event["event"] == "eos":
            note_end(exchange, event)
            ended(event)
            return sse.data(selected(last_object(plans[index], event, "", index, has_new_line[index]), wanted))
        if event["event"] == "progress":
            return sse.data({**chunk_of(index, "", [], 0), "prompt_progress": chunks.prompt_progress(event)})
        n_tokens[index] += 1
        has_new_line[index] = has_new_line[index] or "\n" in event["text"]
        chunk = chunk_of(index, event["text"], [event["token_id"]], n_tokens[index])
        if event.get("logprobs"):
            chunk["completion_probabilities"] = [probability(entry, plans[index]) for entry in event["logprobs"]]
        return sse.data(chunk)

    try:
        await relay(exchange, generations, encode)
    except GatewayError as error:
        exchange.facts["error"] = error.code
        await exchange.finish(sse.error_event(exchange.family.error(error)))
        return
    await exchange.finish()


def chunk_of(index: int, content: str, tokens: list[int], n_tokens: int) -> dict[str, Any]:
    """A piece of a stream that is not its last."""
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
    """The whole answer, or the last piece of a stream."""
    usage, stop = eos["usage"], eos.get("stop") or {}
    kind = "limit" if eos["reason"] == "length" else "word" if "text" in stop else "eos"
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
        "truncated": bool(usage.get("dropped_tokens")),
        "stop_type": kind,
        "stopping_word": stop.get("text", ""),
        "tokens_cached": max(0, usage["prompt_tokens"] + usage["completion_tokens"] - 1),  # in the KV at the end
        "timings": chunks.timings(eos),
    }


def settings(plan: Plan) -> dict[str, Any]:
    """What the answer was made with, as far as the request and the gateway say it."""
    fields = plan.fields
    made = {param.name: fields.get(param.wire or param.name, param.neutral) for param in PARAMS if param.name in SHOWN}
    return {
        **made,
        **({"seed": fields["seed"]} if "seed" in fields else {}),
        "n_predict": fields["max_tokens"],
        "max_tokens": fields["max_tokens"],
        "stop": fields.get("stop", []),
        "logit_bias": fields.get("logit_bias", []),
        "n_probs": fields.get("logprobs", 0),
        "grammar": (fields.get("constraint") or {}).get("gbnf", ""),
        "lora": fields.get("lora", []),
        "stream": fields["stream"],
    }


def probability(entry: Event, plan: Plan) -> dict[str, Any]:
    """One token with its alternatives; probabilities instead of logarithms after the samplers."""
    is_after = bool(plan.fields.get("post_sampling_probs"))
    return {
        **_token(entry, is_after),
        "top_probs" if is_after else "top_logprobs": [_token(other, is_after) for other in entry["top"]],
    }


def _token(entry: Event, is_after: bool) -> dict[str, Any]:
    made = {"id": entry["id"], "token": bytes(entry["bytes"]).decode("utf-8", "replace"), "bytes": entry["bytes"]}
    return {**made, "prob": math.exp(entry["logprob"])} if is_after else {**made, "logprob": entry["logprob"]}


def selected(whole: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    """The `response_fields` that were asked for, under the names that were asked for; a slash goes into an object.

    All where none were.
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
