"""`uma-ctl sessions`: the requests in flight."""

from __future__ import annotations

import click

from uma_ctl import output, render
from uma_ctl.options import Target, with_target


@click.command()
@with_target
def command(target: Target) -> None:
    """List the requests in flight: priority, phase, progress, client, and what a request waits for."""
    with target.connect() as client:
        items = render.rows_of(client.call("sessions"), "sessions")
    output.line(render.as_json(items) if target.as_json else render.sessions(items))
