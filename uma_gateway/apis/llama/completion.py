"""llama-server's native `/completion` and `/infill`: its fields, its stream, its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from uma_gateway import sse
from uma_gateway.apis.openai import chunks
from uma_gateway.daemon import Event, Generation
from uma_gateway.errors import GatewayError, from_daemon, invalid, unsupported
from uma_gateway.exchange import Exchange
from uma_gateway.fields import array, boolean, integer, most_tokens, need, sampling_fields, table, text
from uma_gateway.generate import Plan, batches, begin, ended, final, lane_fields, note_end
from uma_gateway.model import Model

MOST_PROBS = 20
SHOWN = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "stop", "max_tokens")


async def on_completion(exchange: Exchange) -> None:
    body = await exchange.json()
    prompt = _prompt(body.get("prompt"))
    await exchange.while_connected(_answer(exchange, body, prompt))


async def on_infill(exchange: Exchange) -> None:
    """Fill in between `input_prefix` and `input_suffix`, with other files in `input_extra`; `prompt` follows the prefix."""
    body = await exchange.json()
    prefix, suffix, prompt = (text(body, name) or "" for name in ("input_prefix", "input_suffix", "prompt"))
    if not prefix and not suffix and not prompt:
        raise invalid("`input_prefix` or `input_suffix` is required", "input_prefix")
    extra = [{"filename": file.get("filename") or "", "text": file["text"]} for file in array(body, "input_extra") if _is_file(file)]
    infill = {"prefix": prefix + prompt, "suffix": suffix, **({"extra": extra} if extra else {})}
    await exchange.while_connected(_answer(exchange, body, {"infill": infill}))


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
        **lane_fields(exchange, body),
        **prompt,
        "max_tokens": most_tokens(body, ("n_predict", "max_tokens"), model, answers),
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
    form, grammar = body.get("json_schema"), text(body, "grammar")
    if form is not None or grammar:
        need(model, "constraint", "grammar" if grammar else "json_schema")
        fields["constraint"] = {"gbnf": grammar} if grammar else {"json_schema": table(body, "json_schema")}
    return Plan(model, fields)


async def _answer(exchange: Exchange, body: dict[str, Any], prompt: dict[str, Any]) -> None:
    is_stream = boolean(body, "stream")
    wanted = [name for name in array(body, "response_fields") if isinstance(name, str)]

    async def plan_for(model: Model) -> Plan:
        return _plan(exchange, body, prompt, model, is_stream)

    async with begin(exchange, plan_for) as (plan, generation):
        if is_stream:
            await _stream(exchange, generation, plan, wanted)
        else:
            eos = await final(generation)
            note_end(exchange, eos)
            probabilities = eos.get("logprobs") or []
            whole = last_object(plan, eos, eos.get("text", ""), eos["usage"]["completion_tokens"])
            if probabilities:
                whole["completion_probabilities"] = [probability(entry, plan) for entry in probabilities]
            await exchange.send_json(selected(whole, wanted))


async def _stream(exchange: Exchange, generation: Generation, plan: Plan, wanted: list[str]) -> None:
    await exchange.start_sse()
    n_tokens = 0
    try:
        async for events in batches(exchange, generation):
            out: list[bytes] = []
            for event in events:
                if event["event"] == "error":
                    raise from_daemon(event)
                if event["event"] == "eos":
                    note_end(exchange, event)
                    ended(event)
                    out.append(sse.data(selected(last_object(plan, event, "", event["usage"]["completion_tokens"]), wanted)))
                    continue
                n_tokens += 1
                chunk: dict[str, Any] = {"index": 0, "content": event["text"], "tokens": [event["token_id"]], "stop": False, "id_slot": -1}
                chunk |= {"tokens_predicted": n_tokens, "tokens_evaluated": 0}
                if event.get("logprobs"):
                    chunk["completion_probabilities"] = [probability(entry, plan) for entry in event["logprobs"]]
                out.append(sse.data(chunk))
            if out:
                await exchange.write(b"".join(out))
    except GatewayError as error:
        exchange.facts["error"] = error.code
        await exchange.finish(sse.error_event(exchange.family.error(error)))
        return
    await exchange.finish()


def last_object(plan: Plan, eos: Event, content: str, n_tokens: int) -> dict[str, Any]:
    """The whole answer, or the last piece of a stream."""
    usage, stop = eos["usage"], eos.get("stop") or {}
    kind = "limit" if eos["reason"] == "length" else "word" if "text" in stop else "eos"
    settings = {name: plan.fields[name] for name in SHOWN if name in plan.fields}
    return {
        "index": 0,
        "content": content,
        "tokens": [],
        "id_slot": -1,
        "stop": True,
        "model": plan.model.name,
        "tokens_predicted": n_tokens,
        "tokens_evaluated": usage["prompt_tokens"],
        "generation_settings": {"n_ctx": plan.model.n_ctx, "n_predict": plan.fields["max_tokens"], **settings},
        "has_new_line": "\n" in content,
        "truncated": bool(usage.get("dropped_tokens")),
        "stop_type": kind,
        "stopping_word": stop.get("text", ""),
        "tokens_cached": usage["cached_tokens"],
        "timings": chunks.timings(eos),
    }


def probability(entry: Event, plan: Plan) -> dict[str, Any]:
    """One token with its alternatives; probabilities instead of logarithms after the samplers."""
    is_after = bool(plan.fields.get("post_sampling_probs"))
    return {**_token(entry, is_after), "top_probs" if is_after else "top_logprobs": [_token(other, is_after) for other in entry["top"]]}


def _token(entry: Event, is_after: bool) -> dict[str, Any]:
    made = {"id": entry["id"], "token": bytes(entry["bytes"]).decode("utf-8", "replace"), "bytes": entry["bytes"]}
    return {**made, "prob": math.exp(entry["logprob"])} if is_after else {**made, "logprob": entry["logprob"]}


def selected(whole: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    """The `response_fields` that were asked for, under their last name; a slash goes into an object. All where none were."""
    if not wanted:
        return whole
    made: dict[str, Any] = {}
    for path in wanted:
        value: Any = whole
        *outer, name = path.split("/")
        for key in outer:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and name in value:
            made[name] = value[name]
    return made
