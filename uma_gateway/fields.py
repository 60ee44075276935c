"""Translates the sampling fields of every API to those of the daemon's generate request, by one table.

Rules: a field that would change nothing is left out, because clients send neutral values as a habit. A field that would
change something, but that the daemon does not know, is refused and never dropped. The daemon checks ranges.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from uma_core.protocol.fields import N_BIASES_MOST
from uma_gateway.body import LEAST, MOST, array, boolean, integer, text
from uma_gateway.config import AnswerOptions
from uma_gateway.errors import invalid, unsupported
from uma_gateway.model import Model

RANDOM_SEED = 0xFFFFFFFF  # llama.h: LLAMA_DEFAULT_SEED; llama-server shows it, and clients send its settings back
UNLIMITED = -1
MOST_LOGPROBS = 20  # alternatives that the daemon returns for a token


class Param(NamedTuple):
    """`name` in the client's body, `wire` in the daemon's request. `neutral`: the value that has no effect."""

    name: str
    kind: str  # a name in `_TYPES`
    wire: str = ""
    neutral: Any = None


PARAMS = (
    Param("temperature", "number"),
    Param("top_p", "number"),
    Param("top_k", "integer"),
    Param("min_p", "number"),
    Param("frequency_penalty", "number", neutral=0),
    Param("presence_penalty", "number", neutral=0),
    Param("repeat_penalty", "number", neutral=1),
    Param("repetition_penalty", "number", "repeat_penalty", neutral=1),  # vLLM's name
    Param("repeat_last_n", "integer"),
    Param("typical_p", "number", neutral=1),
    Param("min_keep", "integer", neutral=0),
    Param("top_n_sigma", "number", neutral=-1),
    Param("xtc_probability", "number", neutral=0),
    Param("xtc_threshold", "number", neutral=0.1),
    Param("dynatemp_range", "number", neutral=0),
    Param("dynatemp_exponent", "number", neutral=1),
    Param("dry_multiplier", "number", neutral=0),
    Param("dry_base", "number"),
    Param("dry_allowed_length", "integer"),
    Param("dry_penalty_last_n", "integer"),
    Param("dry_sequence_breakers", "array"),
    Param("mirostat", "integer", neutral=0),
    Param("mirostat_tau", "number"),
    Param("mirostat_eta", "number"),
    Param("adaptive_target", "number", neutral=-1),
    Param("adaptive_decay", "number"),
    Param("samplers", "array"),
    Param("banned_strings", "array", neutral=[]),
    Param("bad_words", "array", "banned_strings", neutral=[]),  # vLLM's name
    Param("stop_token_ids", "array", neutral=[]),
    Param("min_tokens", "integer", neutral=0),
    Param("ignore_eos", "boolean", neutral=False),
    Param("cache_prompt", "boolean", neutral=True),
    Param("post_sampling_probs", "boolean", neutral=False),
    Param("timeout_ms", "number", neutral=0),
    Param("overflow", "string"),
    Param("slo", "object"),
)

REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {  # why each is refused, and the values that have no effect
    "grammar_lazy": ("a grammar applies from the first token on", (False,)),
    "truncate_prompt_tokens": ("prompts are not truncated", (-1, 0)),
    "chat_template": ("prompts are written with the model's own", ("",)),
}

_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "string": (str,),
    "object": (dict,),
}
# these have no effect without `dry_multiplier`
_GUARDED = frozenset(("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"))
# llama-server's letters; it knows no others either
_SAMPLERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
# llama-server's other names; None: a sampler that llama.cpp no longer has but clients still list; it is dropped
_SAMPLER_NAMES = {
    alias: name for name in _SAMPLERS.values() for alias in (name.replace("_", "-"), name.replace("_", ""))
} | {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typical_p": "typ_p", "tfs_z": None}
_MIROSTAT = frozenset(("mirostat_tau", "mirostat_eta"))
LEAST_TOP_P = 1e-9  # the daemon refuses 0; this leaves one token too


def sampling_fields(body: Mapping[str, Any], model: Model, defaults: AnswerOptions) -> dict[str, Any]:
    """Return the fields of the daemon's request. Raises: GatewayError that names the field."""
    body = _in_range(body)
    for name, (reason, neutral) in REFUSED.items():
        if body.get(name) not in (None, *neutral):
            raise unsupported(f"`{name}` is not supported: {reason}", name)
    fields: dict[str, Any] = {
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
    }
    for param in PARAMS:
        given = body.get(param.name)
        value = None if given is None else _typed(param, given)
        if value is not None and _matters(param, value, body):
            wire = param.wire or param.name
            need(model, wire, param.name)
            fields[wire] = [*fields[wire], *value] if isinstance(value, list) and wire in fields else value
    seed = integer(body, "random_seed" if body.get("seed") is None else "seed")  # the first is Mistral's name
    if seed is not None and seed not in (UNLIMITED, RANDOM_SEED):
        fields["seed"] = seed & 0xFFFFFFFF
    stops = stop_texts(body)
    if stops:
        fields["stop"] = stops
    bias = logit_bias(body.get("logit_bias"))
    if bias:
        need(model, "logit_bias", "logit_bias")
        fields["logit_bias"] = bias
    lora = lora_field(body, model)
    if lora is not None:
        fields["lora"] = lora
    return fields


def names_in(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the client's names for fields that have another name in the daemon, by the daemon's names."""
    given = [param for param in PARAMS if param.wire and body.get(param.name) is not None]
    return {"tokens": "prompt"} | {param.wire: param.name for param in given if body.get(param.wire) is None}


def _in_range(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace values that other servers accept and the daemon does not. A `top_k` of -1 means no `top_k`, a temperature
    below 0 means greedy, and a `top_p` of 0 leaves only the likeliest token. llama-server has letters and other names
    for samplers. text-generation-webui writes the sequence breakers as a JSON string.
    """
    made: dict[str, Any] = {}
    if _is_number(body.get("top_k")) and body["top_k"] < 0:
        made["top_k"] = 0
    if _is_number(body.get("temperature")) and body["temperature"] < 0:
        made["temperature"] = 0
    if _is_number(body.get("top_p")) and body["top_p"] <= 0:
        made |= {"top_k": 1, "top_p": LEAST_TOP_P}  # `samplers` may have only one of them
    if isinstance(body.get("samplers"), str):
        made["samplers"] = [_SAMPLERS[letter] for letter in body["samplers"] if letter in _SAMPLERS]
    elif isinstance(body.get("samplers"), list):
        made["samplers"] = _samplers(body["samplers"])
    if isinstance(body.get("dry_sequence_breakers"), str):
        with contextlib.suppress(ValueError):
            made["dry_sequence_breakers"] = orjson.loads(body["dry_sequence_breakers"])
    return {**body, **made} if made else body


def _samplers(given: list[Any]) -> list[Any]:
    """Return the samplers under the daemon's names, each once. Unknown ones stay; the daemon refuses them."""
    named = []
    for item in given:
        name = _SAMPLER_NAMES.get(item.lower(), item) if isinstance(item, str) else item
        if name is not None and name not in named:
            named.append(name)
        if len(named) > len(_SAMPLERS):  # at least one is unknown
            break
    return named


def lora_field(body: Mapping[str, Any], model: Model) -> list[dict[str, Any]] | None:
    """Read the LoRA adapters of a request: from llama-server's `lora`, whose ids are numbers in the order of
    `/lora-adapters` (names are accepted too), or the adapter that `model` names, as with vLLM. None: the daemon's
    configured adapters. Raises: GatewayError.
    """
    wanted = array(body, "lora")
    if not wanted:
        name = body.get("model")
        return [{"id": name}] if isinstance(name, str) and name in model.adapters else None
    need(model, "lora", "lora")
    named = []
    for item in wanted:
        if not isinstance(item, dict) or not _is_number(item.get("scale", 1.0)):
            raise invalid("`lora` must hold objects with an `id` and a number `scale`", "lora")
        named.append({"id": _adapter(item.get("id"), model), "scale": item.get("scale", 1.0)})
    return named


def _adapter(given: Any, model: Model) -> str:
    if isinstance(given, str) and given in model.adapters:
        return given
    if type(given) is int and 0 <= given < len(model.adapters):
        return model.adapters[given]
    raise invalid(
        f"`lora`: there is no adapter {str(given)[:100]!r} here; /lora-adapters lists {len(model.adapters)}", "lora"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _typed(param: Param, value: Any) -> Any:
    if param.kind == "integer":
        return integer({param.name: value}, param.name)
    if (isinstance(value, bool) and param.kind != "boolean") or not isinstance(value, _TYPES[param.kind]):
        raise invalid(f"`{param.name}` must be {'an' if param.kind[0] in 'aio' else 'a'} {param.kind}", param.name)
    return value


def _matters(param: Param, value: Any, body: Mapping[str, Any]) -> bool:
    if param.name in _GUARDED:
        return bool(body.get("dry_multiplier"))
    if param.name in _MIROSTAT:
        return bool(body.get("mirostat"))
    return param.neutral is None or bool(value != param.neutral)


def need(model: Model, field: str, param: str) -> None:
    """Check that the daemon's generate operation has a field. Raises: GatewayError (501)."""
    if not model.can(field):
        raise unsupported(f"`{param}` is not supported by this daemon", param)


def allowed_tokens(fields: dict[str, Any], body: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Return the request's fields, with the answer limited to the tokens of vLLM's `allowed_token_ids`, if given. Such
    an answer ends by itself only if one of them is an end token. Raises: GatewayError.
    """
    name = "allowed_token_ids"
    tokens = array(body, name)
    if not tokens:
        return fields
    if not all(type(token) is int and 0 <= token < model.n_vocab for token in tokens):
        raise invalid(f"`{name}` must hold token ids, from 0 to {model.n_vocab - 1}", name)
    if "constraint" in fields:
        raise invalid(f"`{name}` conflicts with the other field that gives the answer its form", name)
    need(model, "constraint", name)
    # a grammar of single tokens may end after any of them
    held = {**fields, "constraint": {"lark": f"start: <[{','.join(map(str, tokens))}]>*"}}
    ends = {model.special_id("eos"), model.special_id("eot")}
    return held if ends.intersection(tokens) else {**held, "ignore_eos": True}


def model_name(body: Mapping[str, Any], model: Model) -> str:
    """Return the name that the request uses for the model."""
    return text(body, "model") or model.name


def stop_texts(body: Mapping[str, Any], name: str = "stop") -> list[str]:
    value = body.get(name)
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
        raise invalid(f"`{name}` must be a string or an array of strings", name)
    return [item for item in texts if item]


def stops_told(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the stop texts that the answer includes, as vLLM's field requests. Raises: GatewayError."""
    return frozenset(stop_texts(body)) if boolean(body, "include_stop_str_in_output") else frozenset()


def logit_bias(value: Any) -> list[list[Any]]:
    """Return OpenAI's object of token ids, or llama-server's array of pairs, as pairs. llama-server accepts texts
    instead of ids, and false, which bans a token. Raises: GatewayError.
    """
    if value is None:
        return []
    if isinstance(value, dict):
        most_biases(len(value))
        return [[_token(key), bias] for key, bias in value.items() if bias is False or bias != 0]
    if not isinstance(value, list):
        raise invalid("`logit_bias` must be an object or an array", "logit_bias")
    most_biases(len(value))
    return value


def most_biases(n: int) -> None:
    """Check the number of biases before they are read: a million of them would stall all streams for seconds.

    Raises: GatewayError.
    """
    if n > N_BIASES_MOST:
        raise invalid(f"`logit_bias` must have at most {N_BIASES_MOST} items", "logit_bias")


def _token(key: str) -> int | str:
    try:
        token = int(key)
    except ValueError:
        return key
    if not LEAST <= token <= MOST:
        raise invalid(f"`logit_bias`: there is no token {key[:100]}", "logit_bias")
    return token


def most_tokens(
    body: Mapping[str, Any], names: tuple[str, ...], model: Model, defaults: AnswerOptions, least: int = 1
) -> int:
    """Return the answer's limit: the first of `names` that is given. -1, as llama-server's clients send it, means no
    limit. An `n_predict` of 0 only reads the prompt.
    """
    for name in names:
        floor = 0 if name == "n_predict" else least
        if body.get(name) != UNLIMITED and (value := integer(body, name, floor)) is not None:
            return value
    return defaults.max_tokens or model.max_tokens
