"""`uma-ctl cache`: the prefix cache."""

from __future__ import annotations

import click

from uma_ctl import output, render
from uma_ctl.client import fields_of
from uma_ctl.options import Target, with_target

NEEDS_KEY = ("pin", "unpin")
WITHOUT_KEY = ("stats", "list")


@click.command()
@with_target
@click.argument("action", type=click.Choice(["stats", "list", "clear", "pin", "unpin"]), default="stats")
@click.argument("key", required=False)
def command(target: Target, action: str, key: str | None) -> None:
    """Show or change the prefix cache: stats, list, clear [KEY], pin KEY, unpin KEY."""
    if action in NEEDS_KEY and key is None:
        raise click.UsageError(f"{action} needs the KEY of an entry, as `uma-ctl cache list` shows it")
    if action in WITHOUT_KEY and key is not None:
        raise click.UsageError(f"{action} takes no KEY")
    with target.connect() as client:
        fields = fields_of(client.call("cache", action=action, key=key))
    if action == "list" and not target.as_json and not render.list_of(fields, "entries"):
        output.line("no entries")
    else:
        output.line(render.as_json(fields) if target.as_json else render.tree(fields) or "done")
