"""Whatever fields a request has, it gets tokens or a coded error, exactly one end, and the daemon keeps running."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.constraint import suite
from tests.daemon.support import DRAFT, DaemonProcess
from uma_core.errors import BY_CODE, Side
from uma_core.protocol.fields import Field, Kind
from uma_core.protocol.ops import OPS

N = 6_000 if os.environ.get("UMA_FUZZ") == "full" else 400
FIELDS = {field.name: field for field in OPS["generate"].fields}
LEFT_OUT = {"messages", "infill", "account", "timeout_ms", "model", "lora"}  # other tests cover these
TEXTS = ["a", "e", " ", "th", "\n", "🙂", "é", "<eog>", "\ufffd", "x" * 3_000, "{", '"', "ab" * 20]
IDS = [0, 1, 97, 256, 257, 258, 8191, 8192, 1 << 20, (1 << 31) - 1, 1 << 31, -1]
GRAMMARS = [
    'root ::= "a" root | "b"',
    "root ::= [a-z]{1,9}",
    "root ::= root",
    "root ::= (",
    'root ::= x\nx ::= "a"{1,2000}',
    "(" * 3_000,
    'root ::= "' + "é" * 500 + '"',
    "root ::= <[256]> .",
    'root ::= ("a"?){40}',
]
LARKS = [
    'start: "a"+',
    "start: /[a-z]+/ x\nx: start",
    "start: nothing",
    'start: %json {"type": "object"}',
    "%ignore",
    "start: start",
    'start: ""',
]
REGEXES = [
    "[a-z]+",
    "(a|b)*a(a|b){12}",
    "((a?){30}){30}b",
    "(",
    "(?=a)",
    "\\p{L}{1,40}",
    ".{0,60000}",
    "(.{0,300}x){0,300}",
    "",
    "a{2,1}",
    "\\1",
]
STRING_PARTS = ["minLength", "maxLength", "pattern", "format"]
SCHEMA_PARTS = [
    *STRING_PARTS,
    "type",
    "enum",
    "const",
    "minItems",
    "items",
    "properties",
    "required",
    "anyOf",
    "$ref",
    "not",
]


def value_of(rng: random.Random, field: Field) -> Any:
    """Draw a value: valid, just out of range, or nonsense."""
    if rng.random() < 0.04:
        return rng.choice([None, True, "x", -1, 1e300, [], {}, [[]], {"a": 1}])
    if field.name == "constraint":
        return constraint(rng)
    if field.name == "logit_bias":
        named = [rng.choice(IDS + TEXTS) for _ in range(rng.choice([0, 1, 3, 200]))]
        return [[each, rng.choice([False, -100, 100, 0, 1e6, -1e7, 5.5])] for each in named]
    if field.kind is Kind.STRINGS:
        return [rng.choice(list(field.choices) or TEXTS) for _ in range(rng.choice([0, 1, 2, 5, 70]))]
    if field.kind is Kind.INTEGERS:
        return [rng.choice(IDS) for _ in range(rng.choice([0, 1, 3, 100]))]
    if field.kind in (Kind.INTEGER, Kind.NUMBER):
        edges = [edge for edge in (field.low, field.high) if edge is not None] or [0, 1]
        value = rng.choice([*edges, 0, 1, 2, 0.5, 40, edges[-1] + 1, edges[0] - 1])
        return int(value) if field.kind is Kind.INTEGER and rng.random() < 0.95 else value
    if field.kind is Kind.BOOLEAN:
        return rng.random() < 0.5
    if field.kind is Kind.OBJECT and field.fields:
        return {inner.name: value_of(rng, inner) for inner in field.fields if inner.is_required or rng.random() < 0.5}
    return rng.choice(list(field.choices) or TEXTS)


def constraint(rng: random.Random) -> Any:
    kind = rng.choice(["json_schema", "json_schema", "json", "regex", "choices", "gbnf", "lark"])
    value = {
        "json_schema": lambda: schema(rng, 4),
        "json": lambda: True,
        "regex": lambda: damaged(rng, rng.choice(REGEXES)),
        "choices": lambda: [rng.choice(TEXTS) for _ in range(rng.choice([1, 2, 60]))],
        "gbnf": lambda: damaged(rng, rng.choice(GRAMMARS)),
        "lark": lambda: damaged(rng, rng.choice(LARKS)),
    }[kind]()
    made = {kind: value}
    if rng.random() < 0.2:
        value = rng.choice([*TEXTS[:9], 97, 999_999, "[", "a+b", "(a|b)*$"])
        made["triggers"] = [
            {"type": rng.choice(["word", "token", "pattern"]), "value": value, "after": rng.random() < 0.5}
        ]
    elif rng.random() < 0.2:
        made["prefix"] = rng.choice(TEXTS)
    return made


def damaged(rng: random.Random, text: str) -> str:
    if rng.random() < 0.6 or not text:
        return text
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(["", "(", ")", "*", '"', "{9}", "\\", "é", "|"]) + text[at + rng.randrange(2) :]


def schema(rng: random.Random, depth: int) -> Any:
    if rng.random() < 0.3:
        return rng.choice(suite.cases()).schema
    made: dict[str, Any] = {}
    for part in rng.sample(SCHEMA_PARTS, rng.randint(0, 4)):
        made[part] = {
            "type": lambda: rng.choice(
                ["object", "array", "string", "integer", "number", "boolean", "null", ["string", "null"], "thing"]
            ),
            "enum": lambda: [rng.choice([1, "a", None, {"a": [1]}, 1e9, "é"]) for _ in range(rng.choice([0, 1, 4]))],
            "const": lambda: rng.choice([1, "a", None, {"a": []}]),
            "pattern": lambda: damaged(rng, rng.choice(REGEXES)),
            "items": lambda: schema(rng, depth - 1) if depth else True,
            "properties": lambda: {
                f"p{i}": schema(rng, depth - 1) if depth else {}
                for i in range(rng.choice([1, 3, 600]) if depth > 3 else 2)
            },
            "required": lambda: rng.choice([["p0"], ["p0", "p0"], ["q"], [], "p0"]),
            "anyOf": lambda: [schema(rng, depth - 1) if depth else {} for _ in range(rng.choice([0, 1, 3]))],
            "$ref": lambda: rng.choice(["#", "#/properties/p0", "#/nothing", "http://example.org/x", "#x", 7]),
            "not": lambda: {},
            "format": lambda: rng.choice(["date", "uuid", "color", 7]),
        }.get(part, lambda: rng.choice([0, 1, 5, 3_000, 20_000, -1, 2.5, "1"]))()
    return made


def request_of(rng: random.Random) -> dict[str, Any]:
    names = [name for name in FIELDS if name not in LEFT_OUT | {"prompt", "tokens", "suffix", "max_tokens"}]
    chosen = rng.sample(names, rng.choice([1, 1, 2, 3, 6]))
    chosen += ["constraint"] * (rng.random() < 0.4)
    made = {name: value_of(rng, FIELDS[name]) for name in chosen}
    made["max_tokens"] = rng.choice([0, 1, 5, 24])
    made |= rng.choice(
        [{"prompt": "hello"}, {"prompt": ["hello", 97]}, {"tokens": [rng.choice(IDS[:5]) for _ in range(4)]}]
    )
    if rng.random() < 0.05:
        made["tokens"] = [rng.choice(IDS)]
    return made


@pytest.mark.fuzz
@pytest.mark.parametrize("engine", ["fake", "draft"])
def test_any_fields_give_tokens_or_a_coded_error(
    serve: Callable[..., DaemonProcess], serve_model: Callable[..., DaemonProcess], engine: str
) -> None:
    daemon = serve() if engine == "fake" else serve_model(model=DRAFT)
    rng, ends = random.Random(11), Counter[str]()
    n = N if engine == "fake" else N // 4
    with daemon.connect() as wire:
        for number in range(n):
            fields = request_of(rng)
            wire.send(id=str(number), **json.loads(json.dumps(fields)))
            events = wire.until_final(str(number))
            *_, last = events
            error = last if last["event"] == "error" else last.get("error")
            if error is not None:
                code = BY_CODE[error["code"]]
                assert code.spec.side is not Side.OURS, (fields, error)
                assert last["event"] == "error" or code.spec.name in ("constraint_failed", "sampler_failed"), (
                    fields,
                    error,
                )
            ends[error["name"] if error else last["reason"]] += 1
            banned = fields.get("banned_strings")
            if error is None and banned:
                said = "".join(e.get("text", "") for e in events if e.get("index", 0) == 0)
                assert fields.get("echo") or not any(b in said for b in banned), (fields, said)
        assert wire.ask("health")["is_ready"]
    print(f"{n} requests on {engine}: {dict(ends)}")
    assert ends["bad_request"] > n / 20 and ends["length"] + ends["stop"] > n / 10
    assert ends["constraint_refused"] > n / 40
    daemon.stop()
