"""Command-line options that constrain an answer to a schema, a regular expression, choices or a grammar."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from uma_ctl.declared import all_of

_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)
_OPTIONS = (
    click.option("--json-schema", type=_FILE, help="The answer is JSON that is valid under this JSON Schema."),
    click.option("--json-object", is_flag=True, help="The answer is any JSON object."),
    click.option("--regex", metavar="REGEX", help="A regular expression that the whole answer matches."),
    click.option("--choices", multiple=True, metavar="TEXT", help="The answer is one of these; repeat for several."),
    click.option("--grammar", type=_FILE, help="A GBNF grammar (llama.cpp's notation)."),
    click.option("--lark", type=_FILE, help="A Lark grammar (llguidance's variant)."),
)


constraint_options = all_of(_OPTIONS)


def take_constraint(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the `constraint` field; None if no option asks for one. Raises: UsageError."""
    found: dict[str, Any] = {}
    if options.get("json_schema"):
        found["json_schema"] = _schema(options["json_schema"])
    if options.get("json_object"):
        found["json"] = True
    if options.get("regex") is not None:
        found["regex"] = options["regex"]
    if options.get("choices"):
        found["choices"] = list(options["choices"])
    for name, kind in (("grammar", "gbnf"), ("lark", "lark")):
        if options.get(name):
            found[kind] = _read(options[name])
    if len(found) > 1:
        raise click.UsageError("give one of --json-schema, --json-object, --regex, --choices, --grammar, --lark")
    return found or None


def _read(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: {error}") from None


def _schema(path: str) -> Any:
    try:
        schema = json.loads(_read(path))
        json.dumps(schema)  # JSON that can be parsed may be nested too deeply to be serialised
        return schema
    except ValueError as error:
        raise click.UsageError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise click.UsageError(f"{path} is nested too deeply") from None
