"""Requests: turn the bytes of one JSON object into a checked `Message`.

Rules: an unknown or invalid field raises BAD_REQUEST, which names it. Names that begin with `x_` are the client's own
and are ignored. Only UmaError is raised here.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NamedTuple

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.constraint import to_constraint
from uma_core.protocol.embed import to_embed_request
from uma_core.protocol.events import WireId
from uma_core.protocol.fields import bad_field, check_fields, check_value, refuse_unknown
from uma_core.protocol.lines import to_text
from uma_core.protocol.ops import DEFAULT_OP, ID_FIELD, OPS, TYPE_FIELD, Op
from uma_core.protocol.sampling import to_params
from uma_core.protocol.shared_fields import shared_values, to_ns
from uma_core.types import AdapterSet, Infill, Reasoning, Request, Slo


class Source(NamedTuple):
    """The bytes of a large request, as received. Its text is decoded from them again when it is needed, where that
    delays nothing else.
    """

    payload: bytes  # its JSON, or with `is_text` the prompt
    is_text: bool
    n_bytes: int  # of its input as text


class Large(NamedTuple):
    """A request that takes long to decode. Pass the result to `Connection.resume`."""

    payload: bytes  # its JSON


class Unfit(NamedTuple):
    """The result of decoding bytes that are not a valid request."""

    wire_id: WireId
    error: UmaError


class Message(NamedTuple):
    """A checked request."""

    op: Op
    id: str  # "" if the client gave none
    wire_id: WireId  # as the client wrote it
    args: dict[str, Any]  # the operation's fields, defaults filled in
    request: Request | None = None  # of generate, embed and rerank
    source: Source | None = None  # of a large request: the input is only here, not in `args` and `request`


def read(payload: bytes | str) -> Message | Unfit:
    """Decode and check a request. An error is reported under the request's id if that can be read."""
    wire_id = None
    try:
        text = payload if isinstance(payload, str) else to_text(payload)
        value, twice = _parse(text)
        wire_id = decode_id(value)
        _check_text(text, value, twice)
        return decode(value, wire_id)
    except UmaError as error:
        return Unfit(wire_id, error)


def parse_object(payload: bytes | str) -> dict[str, Any]:
    """Parse one JSON object. Raises: BAD_UTF8, INVALID_JSON, BAD_REQUEST."""
    text = payload if isinstance(payload, str) else to_text(payload)
    value, twice = _parse(text)
    _check_text(text, value, twice)
    return value


def _parse(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return the object, and a name that occurs twice in one of its objects: JSON does not say which value counts."""
    twice: list[str] = []

    def to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs) and not twice:
            twice.append(Counter(name for name, _ in pairs).most_common(1)[0][0])
        return found

    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=to_dict)
    except RecursionError:
        raise UmaError(ErrorCode.INVALID_JSON, "nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, the two raised below, and integers with thousands of digits
        raise UmaError(ErrorCode.INVALID_JSON, str(error)) from None
    if type(value) is not dict:
        raise UmaError(ErrorCode.INVALID_JSON, "not an object")
    return value, twice


def _check_text(text: str, value: dict[str, Any], twice: list[str]) -> None:
    """Check a request's text. `twice`: a name that occurs twice, which is an error. Raises: BAD_UTF8, BAD_REQUEST."""
    if "\\u" in text:
        _check_escapes(value)
    if twice:
        raise bad_field(twice[0][:64], "appears twice in one object")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if value - value != 0.0:
        raise ValueError(f"the number {digits[:32]} is out of range")
    return value


def _check_escapes(value: Any) -> None:
    """Refuse characters that only escapes can produce: NUL and unpaired surrogates."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if "\0" in item:
                raise UmaError(ErrorCode.BAD_UTF8, "a string contains NUL")
            if any("\ud800" <= c <= "\udfff" for c in item):
                raise UmaError(ErrorCode.BAD_UTF8, "a string contains an unpaired surrogate")
        elif isinstance(item, dict):
            stack += item.keys()
            stack += item.values()
        elif isinstance(item, list):
            stack += item


def decode_id(value: dict[str, Any]) -> WireId:
    """Return the `id`; None if it is absent. Raises: BAD_REQUEST, BAD_UTF8."""
    wire_id: WireId = check_value(ID_FIELD, value)
    _check_escapes(wire_id)
    return wire_id


def decode(value: dict[str, Any], wire_id: WireId) -> Message:
    """Check a request against its operation. Raises: UNKNOWN_TYPE, BAD_REQUEST."""
    name = value.get("type")
    name = DEFAULT_OP if name is None else name
    if type(name) is not str:
        raise bad_field("type", "must be a string")
    op = OPS.get(name)
    if op is None:
        raise UmaError(ErrorCode.UNKNOWN_TYPE, f"no operation `{name[:64]}`", known=sorted(OPS))
    if name == "cancel" and wire_id is None:
        raise bad_field("id", "is required")
    refuse_unknown((TYPE_FIELD, ID_FIELD, *op.fields), value)
    args = check_fields(op.fields, value)
    if name in ("generate", "count", "prefix_hashes"):
        check_input(args)
    id = "" if wire_id is None else str(wire_id)
    return Message(op, id, wire_id, args, request_of(name, id, args))


def request_of(op: str, id: str, args: dict[str, Any]) -> Request | None:
    """Return the request that the model computes; None: the operation needs no computation. Raises: BAD_REQUEST."""
    if op in ("embed", "rerank"):
        return to_embed_request(op, id, args)
    return to_request(id, args) if op == "generate" else None


def generate(id: str, prompt: str, is_large: bool = False) -> Message:
    """Make the message of a prompt line."""
    op = OPS["generate"]
    args = check_fields(op.fields, {} if is_large else {"prompt": prompt})
    payload = prompt.encode() if is_large else b""
    source = Source(payload, True, len(payload)) if is_large else None
    return Message(op, id, id, args, to_request(id, args), source)


INPUTS = ("prompt", "tokens", "messages", "infill")


def check_input(args: dict[str, Any]) -> None:
    """Check that there is exactly one input. Raises: BAD_REQUEST."""
    inputs = [name for name in INPUTS if args[name] is not None]
    if len(inputs) != 1:
        names = ", ".join(f"`{name}`" for name in INPUTS)
        problem = "conflicts" if inputs else "is required"
        raise bad_field(inputs[1] if inputs else "prompt", f"{problem}: give exactly one of {names}")
    if args["suffix"] and inputs[0] in ("messages", "infill"):
        raise bad_field("suffix", f"conflicts: `{inputs[0]}` has no gap at its end")


def to_input(args: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of Request that hold the input."""
    infill = args["infill"]
    if infill is not None:
        files = tuple((file["filename"], file["text"]) for file in infill["extra"])
        infill = Infill(infill["prefix"], infill["suffix"], files)
    return {
        "prompt": args["prompt"],
        "tokens": args["tokens"],
        "messages": args["messages"],
        "infill": infill,
        "suffix": args["suffix"] or "",
    }


def _check_answers(args: dict[str, Any]) -> None:
    n, best_of = args["n"], args["best_of"]
    if best_of is not None and best_of < n:
        raise bad_field("best_of", "must be at least `n`")
    if best_of is not None and best_of > n and args["stream"]:
        raise bad_field("best_of", "conflicts with `stream`: which answers are best is known only when they have ended")
    if args["echo"] and (args["messages"] is not None or args["infill"] is not None):
        raise bad_field("echo", "conflicts: only `prompt` and `tokens` can be repeated in the answer")


def to_request(id: str, args: dict[str, Any]) -> Request:
    """Build the Request from checked generate fields. Raises: BAD_REQUEST if they contradict each other."""
    _check_answers(args)
    slo = args["slo"] or {}
    return Request(
        id=id,
        **to_input(args),
        n=args["n"],
        best_of=args["best_of"] or 0,
        echo=args["echo"],
        prompt_logprobs=args["prompt_logprobs"],
        max_tokens=args["max_tokens"],
        sampling=to_params(args),
        stop=args["stop"] or (),
        banned_strings=args["banned_strings"] or (),
        stream=args["stream"],
        slo=Slo(to_ns(slo.get("target_ttft_ms")), to_ns(slo.get("target_tbt_ms"))),
        cache_prompt=args["cache_prompt"],
        ignore_eos=args["ignore_eos"],
        overflow=args["overflow"] or "",
        preserved_tokens=args["preserved_tokens"] or (),
        queue_updates=args["queue_updates"],
        prompt_progress=args["prompt_progress"],
        constraint=to_constraint(args["constraint"]),
        reasoning=_to_reasoning(args),
        lora=_to_lora(args["lora"]),
        prediction=args["prediction"] or "",
        speculate=args["speculate"] or "",
        **shared_values(args),
    )


def _to_lora(wanted: tuple[dict[str, Any], ...] | None) -> AdapterSet | None:
    if wanted is None:
        return None
    names = [each["id"] for each in wanted]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise bad_field(f"lora[{i}].id", f"names {name} twice")
    return tuple(sorted((each["id"], each["scale"]) for each in wanted if each["scale"]))


def _to_reasoning(args: dict[str, Any]) -> Reasoning | None:
    wanted = args["reasoning"]
    return None if wanted is None else Reasoning(**wanted)
