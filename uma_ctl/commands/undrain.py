"""`uma-ctl undrain`: accept new work again."""

from __future__ import annotations

import click

from uma_ctl import output, render, units
from uma_ctl.client import fields_of
from uma_ctl.options import Target, with_target


@click.command()
@with_target
def command(target: Target) -> None:
    """Accept new work again after a drain."""
    with target.connect() as client:
        fields = fields_of(client.call("undrain"))
    output.line(render.as_json(fields) if target.as_json else units.text(fields.get("state")))
