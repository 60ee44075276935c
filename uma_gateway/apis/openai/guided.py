"""vLLM's fields for structured answers, the new `structured_outputs` and the old `guided_*` ones; and SGLang's."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from uma_gateway.body import table
from uma_gateway.errors import invalid, unsupported

_FIELDS = {
    "guided_json": "json",
    "guided_choice": "choice",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "regex": "regex",  # SGLang's name, like the next
    "ebnf": "grammar",
}
_FORMS = ("json", "json_object", "choice", "regex", "grammar", "structural_tag")  # other fields do not set the form


class Guided(NamedTuple):
    """The form that an answer must have: a schema, or another constraint in the daemon's form. `param` names
    the field.
    """

    param: str = "structured_outputs"
    schema: dict[str, Any] | bool | None = None  # True: any object
    constraint: dict[str, Any] | None = None


def read_guided(body: dict[str, Any]) -> Guided:
    """Read the fields. Raises: GatewayError."""
    if body.get("use_beam_search"):
        raise unsupported("`use_beam_search` is not supported", "use_beam_search")
    given = {f"structured_outputs.{name}": (name, value) for name, value in table(body, "structured_outputs").items()}
    given |= {name: (form, body[name]) for name, form in _FIELDS.items() if name in body}
    wanted = {
        param: (form, value) for param, (form, value) in given.items() if form in _FORMS and value not in (None, False)
    }
    for second in list(wanted)[1:]:  # clients for old and new servers send the same value in both fields
        first = next(iter(wanted))
        if wanted[second] != wanted[first]:
            raise invalid(f"`{second}` conflicts with `{first}`", second)
    return next((_read(param, form, value) for param, (form, value) in wanted.items()), Guided())


def _read(param: str, form: str, value: Any) -> Guided:
    if form == "structural_tag":
        raise unsupported(f"`{param}` is not supported", param)
    if form == "json_object":
        return Guided(param, schema=True)
    if form == "json":
        return Guided(param, schema=_schema(param, value))
    if form == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise invalid(f"`{param}` must hold texts that are not empty", param)
        return Guided(param, constraint={"choices": value})
    if not isinstance(value, str) or not value:
        raise invalid(f"`{param}` must be a text that is not empty", param)
    if form == "regex":
        return Guided(param, constraint={"regex": value})
    # vLLM accepts both notations, and tells them apart by this sign
    return Guided(param, constraint={"gbnf" if "::=" in value else "lark": value})


def _schema(param: str, value: Any) -> dict[str, Any] | bool:
    """Return a schema, which may be written as JSON in a text."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError:
            raise invalid(f"`{param}` is not JSON", param) from None
    if not isinstance(value, dict):
        raise invalid(f"`{param}` must be a JSON schema", param)
    return value or True
