"""The protocol's tables as Markdown, for docs/PROTOCOL.md."""

from __future__ import annotations

import json

from uma_core.protocol.events import EVENTS
from uma_core.protocol.fields import N_BIASES_MOST, Field, Kind
from uma_core.protocol.ops import ID_FIELD, OPS

UNITS = {  # of what a range counts; that of a number is its value
    Kind.STRING: "characters",
    Kind.ID: "characters of a string",
    Kind.STRINGS: "items",
    Kind.INTEGERS: "items",
    Kind.INPUTS: "items",
    Kind.OBJECTS: "items",
    Kind.TAGS: "entries",
}


def ops_markdown() -> str:
    """Describe every operation: one section each, with its request and reply fields."""
    parts = []
    for op in OPS.values():
        parts.append(
            "### "
            f"`{op.name}`\n\n{op.help}"
            f"{' Owner, root and administrators (`access.admin_uids`) only.' if op.is_admin else ''}\n"
        )
        parts.append(fields_table((ID_FIELD, *op.fields)))
        if op.reply:
            parts.append("Reply:\n\n" + fields_table(op.reply, is_reply=True))
    return "\n".join(parts)


def events_markdown() -> str:
    """Describe every event: one section each, with its fields."""
    return "\n".join(
        f"### `{event.name}`\n\n{event.help}\n\n{fields_table(event.fields, is_reply=True)}" for event in EVENTS
    )


def fields_table(fields: tuple[Field, ...], is_reply: bool = False) -> str:
    columns = ["field", "type", "meaning"] if is_reply else ["field", "type", "default", "range", "meaning"]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for field in _flatten(fields):
        cells = [f"`{field.name}`", field.kind.value, field.help]
        if is_reply:
            cells[2] = ", ".join(filter(None, (field.help, _choices(field))))
        else:
            cells[2:2] = ["required" if field.is_required else _default(field), _range(field)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _flatten(fields: tuple[Field, ...]) -> list[Field]:
    flat = []
    for field in fields:
        flat.append(field)
        within = field.name + ("[]." if field.kind is Kind.OBJECTS else ".")
        flat += [inner._replace(name=within + inner.name) for inner in _flatten(field.fields)]
    return flat


def _default(field: Field) -> str:
    return "" if field.default is None else f"`{json.dumps(field.default)}`"


def _choices(field: Field) -> str:
    return ", ".join(f"`{choice}`" for choice in field.choices)


def _range(field: Field) -> str:
    if field.choices:
        return _choices(field)
    if field.kind in (Kind.MIXED, Kind.MESSAGES) or (field.kind in UNITS and (field.low, field.high) == (1, None)):
        return "not empty"
    unit = UNITS.get(field.kind)
    least = None if unit and not field.low else field.low  # every length is at least 0
    low = "" if least is None else f"{'> ' if field.is_open_low else '≥ '}{least}"
    high = "" if field.high is None else f"≤ {field.high}"
    bounds = ", ".join(filter(None, (low, high)))
    parts = [f"{bounds} {unit}" if bounds and unit else bounds]
    if field.kind is Kind.BIASES:
        parts.append(f"≤ {N_BIASES_MOST} items")
    if field.each_high is not None:
        parts.append(f"each ≤ {field.each_high} characters")
    return ", ".join(filter(None, parts))
