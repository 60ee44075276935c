"""Ollama's endpoints: lines of JSON, options in a table of their own, tool arguments as objects.

Source: Ollama's docs/api.md. The one served model answers to any name, because clients write tags such as `:latest`.
Requests to fetch, make or delete models are refused.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from uma_gateway.apis.base import Access, Family, Route
from uma_gateway.apis.openai.request import read_parallel, read_tools
from uma_gateway.asking import Ask, plan_prompt
from uma_gateway.body import array, boolean, integer, table, text
from uma_gateway.chat.diff import Message, ToolCall
from uma_gateway.embedding import ask, unpacked
from uma_gateway.embedding import options_of as vector_options
from uma_gateway.errors import GatewayError, invalid, unsupported
from uma_gateway.exchange import Exchange
from uma_gateway.fields import MOST_LOGPROBS, model_name, most_biases, most_tokens
from uma_gateway.generate import Plan, begin, ended, final, note_end, relay, spent_ms
from uma_gateway.generation import Generation
from uma_gateway.link import Event
from uma_gateway.model import Model
from uma_gateway.parsing import Parser, Plain, whole
from uma_gateway.plain import constraint_field, gap_field
from uma_gateway.prompting import Chat, Prompt, render

# the reported version: the first Ollama with /v1/messages. From 0.13.4 on, Codex uses /v1/responses
VERSION = "0.14.0"
KEPT = datetime.timedelta(days=290 * 365)  # expiry of a model that stays loaded; Ollama's clients show it as "forever"
_ZERO = r"0+(?:\.0*)?"
# a duration of zero. There is only one way to match a text: a second one for each zero would take 2^n steps
NO_TIME = re.compile(rf"{_ZERO}(?:(?:ns|us|µs|ms|s|m|h){_ZERO})*(?:ns|us|µs|ms|s|m|h)?")
PLAIN = re.compile(r"\s*\{\{-?\s*\.Prompt\s*-?\}\}\s*")  # a template of the prompt alone: Tabby writes prompts itself
MS = 1_000_000
LATEST = ":latest"  # the tag that clients add to a name without one
THINK_LEVELS = ("low", "medium", "high", "max")
# options for loading a model, which the daemon's configuration sets
LOADING = frozenset(
    (
        "num_ctx",
        "num_gpu",
        "num_thread",
        "num_batch",
        "num_keep",
        "main_gpu",
        "use_mmap",
        "use_mlock",
        "low_vram",
        "numa",
        "f16_kv",
    )
)


def now_text() -> str:
    return _time_text(datetime.datetime.now(datetime.timezone.utc))


def _time_text(moment: datetime.datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


# ---- chat and generate


class Answer:
    """How one endpoint writes an answer. `part` turns a piece of a message into fields of a line."""

    def __init__(self, name: str, part: Callable[[Message], dict[str, Any]]) -> None:
        self._name = name
        self._part = part

    def line(self, message: Message, logprobs: list[Event] | None = None) -> dict[str, Any]:
        told = {"logprobs": [logprob_object(entry) for entry in logprobs]} if logprobs else {}
        return {"model": self._name, "created_at": now_text(), **self._part(message), **told, "done": False}

    def last(self, message: Message, eos: Event, logprobs: list[Event] | None = None) -> dict[str, Any]:
        return {**self.line(message, logprobs), "done": True, "done_reason": eos["reason"], **durations(eos)}

    def without_text(self, reason: str) -> dict[str, Any]:
        """Return the answer to a request without a prompt, which only loads or unloads the model."""
        return {**self.line(Message()), "done": True, "done_reason": reason}


def logprob_object(entry: Event) -> dict[str, Any]:
    top = {"top_logprobs": [_token_object(other) for other in entry["top"]]} if entry.get("top") else {}
    return {**_token_object(entry), **top}


def _token_object(entry: Event) -> dict[str, Any]:
    token = bytes(entry["bytes"]).decode("utf-8", "replace")
    return {"token": token, "logprob": entry["logprob"], "bytes": entry["bytes"]}


def chat_part(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        made["thinking"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [tool_object(call) for call in message.tool_calls]
    return {"message": made}


def generate_part(message: Message) -> dict[str, Any]:
    return {"response": message.content, **({"thinking": message.reasoning} if message.reasoning else {})}


def tool_object(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "function": {"index": call.index, "name": call.name, "arguments": call.values}}


def durations(eos: Event) -> dict[str, int]:
    """Return times in nanoseconds, as Ollama counts."""
    counts, timing = eos["usage"], eos["timing"]
    prompt_ms, answer_ms = spent_ms(timing)
    return {
        "total_duration": round(timing.get("total_ms", 0.0) * MS),
        "load_duration": 0,
        "prompt_eval_count": counts["prompt_tokens"],
        "prompt_eval_duration": round(prompt_ms * MS),
        "eval_count": counts["completion_tokens"],
        "eval_duration": round(answer_ms * MS),
    }


async def on_chat(exchange: Exchange) -> None:
    body = await exchange.json()
    messages = array(body, "messages")
    if not messages:
        await _loaded(exchange, body, chat_part)
        return
    tools, choice = read_tools(array(body, "tools"), body.get("tool_choice"))  # few of Ollama's clients send a choice
    made = await exchange.read(openai_messages, messages)
    chat = _with_options(body, Chat(made, tools, choice, read_parallel(body, choice)))
    last = chat.messages[-1]
    if last["role"] == "assistant" and not last.get("tool_calls"):
        chat.continue_final_message, chat.add_generation_prompt = True, False

    async def prompt_for(model: Model) -> Prompt:
        return await render(exchange, model, chat)

    await exchange.while_connected(_answer(exchange, body, chat, prompt_for, chat_part))


async def on_generate(exchange: Exchange) -> None:
    body = await exchange.json()
    prompt, suffix = text(body, "prompt") or "", text(body, "suffix") or ""
    if not prompt:
        await _loaded(exchange, body, generate_part)
        return
    _refuse_images(body.get("images"), "images")
    template = text(body, "template") or ""
    is_plain = bool(PLAIN.fullmatch(template))
    if template and not is_plain:
        raise unsupported("`template` is not supported: the model's own is used, or `raw`", "template")
    if body.get("context"):
        raise unsupported("`context` is not supported: send the conversation to /api/chat", "context")
    system = text(body, "system")
    messages = [{"role": "system", "content": system}] if system else []
    chat = _with_options(body, Chat(messages=[*messages, {"role": "user", "content": prompt}]))
    is_raw = boolean(body, "raw") or is_plain
    if is_raw and system:
        raise invalid("`system` conflicts with `raw`, and with a `template` of the prompt alone", "system")

    async def prompt_for(model: Model) -> Prompt:
        if not suffix and not is_raw:
            return await render(exchange, model, chat)
        form = constraint_field(model, chat.json_schema, "", "format")
        return Prompt({**gap_field(model, prompt, suffix), **form}, [], Plain)

    await exchange.while_connected(_answer(exchange, body, chat, prompt_for, generate_part))


async def _loaded(exchange: Exchange, body: dict[str, Any], part: Callable[[Message], dict[str, Any]]) -> None:
    """Answer a request to load or unload the model. The model stays loaded; the client only needs an answer."""
    keep_alive = body.get("keep_alive")
    is_unload = keep_alive is not None and bool(NO_TIME.fullmatch(str(keep_alive)))
    answer = Answer(model_name(body, await exchange.gateway.model()), part)
    await exchange.send_json(answer.without_text("unload" if is_unload else "load"))


def _logprobs_wanted(body: dict[str, Any]) -> int | None:
    """Return how many alternatives to report for each token; None: no log probabilities. Raises: GatewayError."""
    n_top = integer(body, "top_logprobs", 0, MOST_LOGPROBS) or 0
    return n_top if boolean(body, "logprobs") else None


def _with_options(body: dict[str, Any], chat: Chat) -> Chat:
    """Read `format` and `think`."""
    form, chat.form_param = body.get("format"), "format"
    if form == "json":
        chat.json_schema = True
    elif isinstance(form, dict):
        chat.json_schema = form or True
    elif form not in (None, ""):
        raise invalid('`format` must be "json" or a JSON schema', "format")
    think = body.get("think")
    if think is not None:
        if not isinstance(think, bool) and think not in THINK_LEVELS:
            raise invalid("`think` must be true, false, low, medium, high or max", "think")
        chat.enable_thinking = bool(think)
        if isinstance(think, str):
            chat.template_kwargs["reasoning_effort"] = think
    return chat


async def _answer(
    exchange: Exchange,
    body: dict[str, Any],
    chat: Chat,
    prompt_for: Callable[[Model], Awaitable[Prompt]],
    part: Callable[[Message], dict[str, Any]],
) -> None:
    request = Ask(chat, is_stream=boolean(body, "stream", True), n_logprobs=_logprobs_wanted(body))

    async def plan_for(model: Model) -> Plan:
        prompt, options = await prompt_for(model), options_of(body)
        max_tokens = most_tokens(options, ("num_predict",), model, exchange.gateway.config.answers)
        return plan_prompt(exchange, model, request, prompt, options, max_tokens)

    async with begin(exchange, plan_for) as (plan, generation):
        answer, parser = Answer(model_name(body, plan.model), part), plan.context.parser()
        if request.is_stream:
            await _stream(exchange, generation, answer, parser)
        else:
            eos = await final(generation)
            note_end(exchange, eos)
            message = whole(parser, eos.get("text", ""))
            message.tool_calls = _whole_calls(message.tool_calls, eos)
            await exchange.send_json(answer.last(message, eos, eos.get("logprobs")))


def _whole_calls(calls: list[ToolCall], end: Event) -> list[ToolCall]:
    """Return the calls of an answer that has ended, without the last one if the answer was cut off in its arguments.
    Clients run every call, because they cannot tell from an object that its text was incomplete; Ollama leaves it out.
    """
    is_cut = end["reason"] == "length" or bool(end.get("stop"))
    return calls[:-1] if is_cut and calls and not calls[-1].is_complete else calls


async def _stream(exchange: Exchange, generation: Generation, answer: Answer, parser: Parser) -> None:
    """Stream text as it is generated, and each tool call once its arguments are complete, as Ollama's clients expect.

    A call is not held back until the last line, because some clients cannot read two lines that arrive together.
    """
    await exchange.start_ndjson()
    calls = Message()  # calls that have begun
    n_told = 0  # number of calls that were sent
    held: list[Event] = []  # log probabilities of text that the parser holds back

    def encode(_: int, event: Event) -> bytes:
        nonlocal n_told
        is_last = event["event"] == "eos"
        if is_last:
            note_end(exchange, event)
            ended(event)
        held.extend(event.get("logprobs") or ())
        piece = Message()
        for diff in parser.feed("" if is_last else event["text"], is_last):
            (calls if diff.tool >= 0 else piece).add(diff)
        lines = []
        if piece.content or piece.reasoning:
            lines.append(ndjson(answer.line(piece, held)))
            held.clear()
        ready = (_whole_calls(calls.tool_calls, event) if is_last else calls.tool_calls)[n_told:]
        if ready and not is_last and not ready[-1].is_complete:
            ready.pop()
        if ready:
            lines.append(ndjson(answer.line(Message(tool_calls=ready))))
            n_told += len(ready)
        if is_last:
            lines.append(ndjson(answer.last(Message(), event, held)))
        return b"".join(lines)

    await relay(exchange, [generation], encode, failed=lambda error: ndjson(exchange.error_object(error)), is_sse=False)


def ndjson(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"


def options_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling options under the names that the other APIs use, with the request's LoRA adapters and
    priority. A `num_predict` of -2 or 0 counts as absent.
    """
    options = {name: value for name, value in table(body, "options").items() if name not in LOADING}
    options |= {name: body.get(name) for name in ("lora", "priority", "service_tier")}
    options["model"] = (text(body, "model") or "").removesuffix(LATEST)
    if isinstance(options.get("logit_bias"), str):
        options["logit_bias"] = _biases(options["logit_bias"])
    if integer(options, "num_predict") in (-2, 0):
        options["num_predict"] = None
    return options


def _biases(written: str) -> dict[str, float]:
    """Read `100:5, 101:-100`, the form in which Open WebUI passes on its user's input. Raises: GatewayError."""
    most_biases(written.count(",") + 1)
    pairs = [pair.rpartition(":") for pair in written.split(",") if pair.strip()]
    try:
        return {token.strip(): float(bias) for token, _, bias in pairs}
    except ValueError:
        raise invalid("`logit_bias` must be pairs such as `100:5, 101:-100`", "logit_bias") from None


def openai_messages(messages: list[Any]) -> list[dict[str, Any]]:
    """Return the messages in OpenAI's form: calls get ids, and results name them. Raises: GatewayError."""
    made: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # (name, id) of calls without a result
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise invalid(f"`{path}` must be an object with a role", path)
        _refuse_images(message.get("images"), f"{path}.images")
        new: dict[str, Any] = {"role": message["role"], "content": message.get("content") or ""}
        if message.get("thinking"):
            new["reasoning_content"] = message["thinking"]
        if message.get("tool_calls"):
            new["tool_calls"] = [
                _call(call, f"call_{i}_{n}", path) for n, call in enumerate(array(message, "tool_calls"))
            ]
            waiting += [(call["function"]["name"], call["id"]) for call in new["tool_calls"]]
        if message["role"] == "tool":
            name = message.get("tool_name") or message.get("name")
            given_id = message.get("tool_call_id")
            found = next((pair for pair in waiting if given_id == pair[1]), None) or next(
                (pair for pair in waiting if name in (None, pair[0])), None
            )
            if found is not None:
                waiting.remove(found)
                new["tool_call_id"] = found[1]
            if name or found:
                new["name"] = name or (found and found[0])
        made.append(new)
    return made


def _call(call: Any, call_id: str, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(f"`{path}.tool_calls` must hold objects with a function's name", f"{path}.tool_calls")
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return {
        "id": call.get("id") or call_id,
        "type": "function",
        "function": {"name": function["name"], "arguments": written},
    }


def _refuse_images(images: Any, param: str) -> None:
    if images:
        raise unsupported(f"`{param}` is not supported: the daemon serves text", param)


# ---- embeddings


async def on_embed(exchange: Exchange) -> None:
    body = await exchange.json()
    inputs = body.get("input")
    if inputs is None or inputs == "" or inputs == []:
        await exchange.send_json({"model": model_name(body, await exchange.gateway.model()), "embeddings": []})
        return
    listed = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(listed, list) or not all(isinstance(item, str) and item for item in listed):
        raise invalid("`input` must be a string or an array of strings that are not empty", "input")
    await exchange.while_connected(_embed(exchange, body, listed))


async def on_embeddings(exchange: Exchange) -> None:
    """Answer the endpoint that came before `/api/embed`: one prompt, one vector of any length."""
    body = await exchange.json()
    prompt = text(body, "prompt")
    if not prompt:
        await exchange.send_json({"embedding": []})
        return
    await exchange.while_connected(_embed_one(exchange, body, prompt))


async def _embed(exchange: Exchange, body: dict[str, Any], inputs: list[str]) -> None:
    model = await exchange.gateway.model()
    reply = await ask(exchange, "embed", body, {"input": inputs, "truncate": True, **vector_options(body)})
    vectors = [unpacked(item) for item in reply["embeddings"]]
    figures = {
        "total_duration": round(reply["timing"]["total_ms"] * MS),
        "load_duration": 0,
        "prompt_eval_count": reply["usage"]["prompt_tokens"],
    }
    await exchange.send_json({"model": model_name(body, model), "embeddings": vectors, **figures})


async def _embed_one(exchange: Exchange, body: dict[str, Any], prompt: str) -> None:
    fields = {"input": prompt, "truncate": True, "normalize": False, **vector_options(body)}
    reply = await ask(exchange, "embed", body, fields, {"input": "prompt"})
    await exchange.send_json({"embedding": unpacked(reply["embeddings"][0])})


# ---- about models


async def on_version(exchange: Exchange) -> None:
    await exchange.send_json({"version": VERSION})


def listed(model: Model, name: str, since: str) -> dict[str, Any]:
    """Describe a model in the list. `name`: one of those that requests may use."""
    return {
        "name": name,
        "model": name,
        "modified_at": since,
        "size": model.props["model"]["n_bytes"],
        "digest": model.fingerprint,
        "details": model.details,
    }


def _since(exchange: Exchange) -> str:
    started = datetime.datetime.fromtimestamp(exchange.gateway.started_at, datetime.timezone.utc)
    return _time_text(started)


async def on_tags(exchange: Exchange) -> None:
    since = _since(exchange)
    models = [listed(model, name, since) for model in await exchange.gateway.models() for name in model.names]
    await exchange.send_json({"models": models})


async def on_ps(exchange: Exchange) -> None:
    since, expires_at = _since(exchange), _time_text(datetime.datetime.now(datetime.timezone.utc) + KEPT)
    rows = [
        {
            **listed(model, model.name, since),
            "expires_at": expires_at,
            "size_vram": model.props["model"]["n_bytes"],
            "context_length": model.n_ctx,
        }
        for model in await exchange.gateway.models()
    ]
    await exchange.send_json({"models": rows})


async def on_show(exchange: Exchange) -> None:
    await exchange.json()
    model = await exchange.gateway.model(is_new=True)
    facts = model.props["model"]
    arch = facts["arch"]
    await exchange.send_json(
        {
            "modelfile": f"FROM {model.name}\n",
            "parameters": f"{'num_ctx':<30} {model.n_ctx}",  # in Ollama's columns; Continue reads the context here
            "template": model.chat_template,
            "details": model.details,
            "model_info": {
                "general.architecture": arch,
                "general.basename": model.name,
                "general.parameter_count": facts["n_params"],
                f"{arch}.context_length": model.n_ctx,
                f"{arch}.embedding_length": facts["n_embd"],
                f"{arch}.vocab_size": model.n_vocab,
            },
            "capabilities": model.abilities,
            "modified_at": _since(exchange),
        }
    )


async def on_pull(exchange: Exchange) -> None:
    """Answer a request to fetch a model. Clients fetch a model before they use it; the served one is already there."""
    body = await exchange.json()
    name = str(body.get("model") or body.get("name") or "")
    model = await exchange.gateway.model(is_new=True)
    if name.split(":")[0] != model.name.split(":")[0]:
        raise unsupported(f"only {model.name!r} is served here: the daemon's configuration says which model", "model")
    if boolean(body, "stream", True):
        await exchange.start_ndjson()
        await exchange.finish(ndjson({"status": "success"}))
    else:
        await exchange.send_json({"status": "success"})


async def on_managing(exchange: Exchange) -> None:
    raise unsupported("models are not managed here: the daemon's configuration says which one is served")


def error_object(error: GatewayError) -> dict[str, Any]:
    return {"error": error.message}


FAMILY = Family(
    "ollama",
    (
        Route("POST", "/api/chat", on_chat, is_work=True),
        Route("POST", "/api/generate", on_generate, is_work=True),
        Route("POST", "/api/embed", on_embed, is_work=True),
        Route("POST", "/api/embeddings", on_embeddings, is_work=True),
        Route("GET", "/api/version", on_version, Access.PUBLIC),
        Route("GET", "/api/tags", on_tags),
        Route("GET", "/api/ps", on_ps),
        Route("POST", "/api/show", on_show),
        Route("POST", "/api/pull", on_pull),
        *(Route("POST", f"/api/{name}", on_managing) for name in ("create", "copy", "push")),
        Route("DELETE", "/api/delete", on_managing),
    ),
    error_object,
    ("/api/",),
)
