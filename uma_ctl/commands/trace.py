"""`uma-ctl trace`: ticks on a time line."""

from __future__ import annotations

from pathlib import Path

import click

from uma_ctl import output, render
from uma_ctl.client import DEFAULT_TIMEOUT_S, fields_of
from uma_ctl.options import Target, with_target


@click.command()
@with_target
@click.option("--seconds", type=click.FloatRange(0.01, 60), default=2.0, show_default=True, help="How long to record.")
@click.option("--out", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Where to write; standard output where absent.")
def command(target: Target, seconds: float, out: str | None) -> None:
    """Record ticks, rows and guard decisions as a Chrome trace: open it in Perfetto or chrome://tracing."""
    with target.connect(seconds + DEFAULT_TIMEOUT_S) as client:
        fields = fields_of(client.call("trace", seconds=seconds))
    if out is None:
        output.line(render.as_json(fields))
        return
    try:
        Path(out).write_text(render.as_json(fields) + "\n", encoding="utf-8")
    except OSError as error:
        raise click.FileError(out, error.strerror) from None
    output.note(f"{len(render.rows_of(fields, 'traceEvents'))} events in {out}")
