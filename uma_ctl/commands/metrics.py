"""`uma-ctl metrics`: all figures, for people, as JSON, or for Prometheus."""

from __future__ import annotations

import click

from uma_ctl import output, render
from uma_ctl.options import Target, with_target


@click.command()
@with_target
@click.option("--prometheus", is_flag=True, help="The Prometheus text format.")
def command(target: Target, prometheus: bool) -> None:
    """Show all metrics."""
    if prometheus and target.as_json:
        raise click.UsageError("give --json or --prometheus, not both")
    with target.connect() as client:
        reply = client.call("metrics", format="prometheus" if prometheus else None)
    if prometheus:
        output.emit(str(reply.get("text", "")))
    else:
        values = render.sub(reply, "metrics")
        output.line(render.as_json(values) if target.as_json else render.metrics(values))
