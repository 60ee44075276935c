"""`uma-ctl reload`: read the configuration again, or load another model, without losing a stream."""

from __future__ import annotations

import os

import click

from uma_ctl import output, render, units
from uma_ctl.client import fields_of
from uma_ctl.options import Target, with_target

LOAD_TIMEOUT_S = 600.0  # a large model from a slow disk


@click.command()
@with_target
@click.option("--check", is_flag=True, help="Only validate, and show what would change.")
@click.option("--model", type=click.Path(), metavar="PATH", help="Load this model.")
def command(target: Target, check: bool, model: str | None) -> None:
    """Read the configuration again and apply it. On any failure the old one keeps serving."""
    if model == "":  # probably an unset variable, which must not mean "no option"
        raise click.UsageError("the path of the model is empty")
    with target.connect(LOAD_TIMEOUT_S) as client:
        path = os.path.abspath(model) if model else None  # the daemon's working directory is another one
        fields = fields_of(client.call("reload", check=check or None, model=path))
    if target.as_json:
        output.line(render.as_json(fields))
        return
    changes = render.rows_of(fields, "changes")
    is_same_path = path and not changes and not check
    output.line("no option changes: the file is loaded again" if is_same_path else render.changes(changes))
    if fields.get("fit") == "swap":
        output.line("there is no room for both models: running streams finish first, then the new one is loaded")
    elif check and fields.get("fit") == "beside":
        output.line("there is room for both models: running streams finish on the old one")
    if not check:
        output.line(f"generation {units.text(fields.get('generation'))}")
