"""`uma-ctl trace`: record ticks as a timeline, or as lines that can be replayed."""

from __future__ import annotations

import os
from pathlib import Path

import click

from uma_ctl import output, render, units
from uma_ctl.client import DEFAULT_TIMEOUT_S, Event, fields_of
from uma_ctl.options import Target, with_target
from uma_ctl.ranges import FiniteRange

ENCODING_S = 60.0  # building the reply takes a while after a busy minute


def _creatable(context: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Check before anything is recorded that the file can be created. Raises: BadParameter."""
    if path is not None and not os.path.exists(path) and not os.access(os.path.dirname(path) or ".", os.W_OK):
        raise click.BadParameter(f"cannot create {path!r}", context, param)
    return path


@click.command()
@with_target
@click.option("--seconds", type=FiniteRange(0.01, 60), default=2.0, show_default=True, help="How long to record.")
@click.option(
    "--jsonl", is_flag=True, help="JSON lines of states and plans, for `python -m uma_core.trace replay FILE`."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, writable=True),
    callback=_creatable,
    metavar="FILE",
    help="File to write; default: standard output.",
)
def command(target: Target, seconds: float, jsonl: bool, out: str | None) -> None:
    """Record ticks, rows and guard decisions as a Chrome trace: open it in Perfetto or chrome://tracing."""
    with target.connect(seconds + DEFAULT_TIMEOUT_S + ENCODING_S) as client:
        fields = fields_of(client.call("trace", seconds=seconds, format="jsonl" if jsonl else None))
    lines = render.list_of(fields, "lines") if jsonl else (fields,)
    text = "".join(f"{render.as_json(line)}\n" for line in lines)
    if out is None:
        output.emit(text)
        if not lines:
            output.note("no tick in this time: nothing was computed")
    else:
        _write(out, text)
        output.note(f"{_count(fields, jsonl)} in {out}")
    if fields.get("is_cut_short"):
        output.note("the daemon stopped before the time was over")
    if fields.get("n_left_out"):
        left_out = units.counted(fields["n_left_out"], "later tick")
        output.note(f"left out: {left_out}; record for a shorter time")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.FileError(path, error.strerror) from None


def _count(fields: Event, jsonl: bool) -> str:
    if jsonl:
        return units.counted(fields.get("n_ticks"), "tick")
    return units.counted(len(render.rows_of(fields, "traceEvents")), "event")
