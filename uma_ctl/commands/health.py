"""`uma-ctl health`: for scripts and supervisors."""

from __future__ import annotations

import click

from uma_ctl import output, render, units
from uma_ctl.client import fields_of
from uma_ctl.errors import EXIT_OK, EXIT_SERVER
from uma_ctl.options import Target, with_target


@click.command()
@with_target
def command(target: Target) -> int:
    """Tell whether generate requests would be accepted now.

    The exit code is 0 if so, 2 if not, 1 if the daemon cannot be reached.
    """
    with target.connect() as client:
        fields = fields_of(client.call("health"))
    output.line(render.as_json(fields) if target.as_json else units.text(fields.get("state")))
    return EXIT_OK if fields.get("is_ready") else EXIT_SERVER
