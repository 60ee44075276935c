"""The `constraint` field of generate: its declaration and its conversion."""

from __future__ import annotations

from typing import Any

from uma_core.protocol.fields import Field, Kind, bad_field
from uma_core.types import Constraint, Trigger

N_TRIGGERS_MOST = 64
KINDS = ("json_schema", "json", "regex", "choices", "gbnf", "lark")

_TRIGGER = (
    Field("type", Kind.STRING, "kind of `value`", choices=("word", "token", "pattern"), is_required=True),
    Field(
        "value",
        Kind.ID,
        "word: plain text; token: a control token's text or a token id; pattern: a regular expression",
        low=1,
        high=1024,
        is_required=True,
    ),
    Field("after", Kind.BOOLEAN, "true: the grammar begins after the trigger's own text", False),
)

FIELD = Field(
    "constraint",
    Kind.OBJECT,
    f"limits the form of the answer: give exactly one of {', '.join(f'`{kind}`' for kind in KINDS)}",
    fields=(
        Field(
            "json_schema",
            Kind.SCHEMA,
            "the answer is JSON that this schema accepts: draft 2020-12, 2019-09, 7 or 6",
        ),
        Field("json", Kind.BOOLEAN, "true: the answer is a JSON object"),
        Field(
            "regex",
            Kind.STRING,
            "the whole answer matches this regular expression, in Rust's syntax without look-around",
            low=1,
        ),
        Field("choices", Kind.STRINGS, "the answer is one of these texts", high=10_000, low=1),
        Field("gbnf", Kind.STRING, "a grammar in llama.cpp's notation; it begins at `root`", low=1),
        Field("lark", Kind.STRING, "a grammar in llguidance's variant of Lark; it begins at `start`", low=1),
        Field(
            "triggers",
            Kind.OBJECTS,
            "the answer is free text until one of these triggers appears",
            high=N_TRIGGERS_MOST,
            fields=_TRIGGER,
        ),
        Field(
            "prefix",
            Kind.STRING,
            "text at the end of the prompt that already starts the constrained text",
            low=1,
        ),
    ),
)


def to_constraint(args: dict[str, Any] | None) -> Constraint | None:
    """Convert the checked field. Raises: BAD_REQUEST unless it has exactly one kind."""
    if args is None:
        return None
    given = [kind for kind in KINDS if args[kind] is not None and not (kind == "json" and args[kind] is False)]
    if len(given) != 1:
        path = f"constraint.{given[1] if given else KINDS[0]}"
        problem = "conflicts" if given else "is required"
        raise bad_field(path, f"{problem}: give exactly one of {', '.join(f'`{kind}`' for kind in KINDS)}")
    triggers = tuple(Trigger(item["type"], item["value"], item["after"]) for item in args["triggers"] or ())
    for i, trigger in enumerate(triggers):
        if trigger.kind != "token" and not isinstance(trigger.value, str):
            raise bad_field(f"constraint.triggers[{i}].value", "must be a string")
    if triggers and args["prefix"]:
        raise bad_field("constraint.prefix", "conflicts with `constraint.triggers`")
    kind, value = given[0], args[given[0]]
    if kind == "json":
        kind, value = "json_schema", {"type": "object"}
    return Constraint(kind, value, triggers, args["prefix"] or "")
