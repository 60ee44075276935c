"""`uma-ctl detokenize`: the text of tokens."""

from __future__ import annotations

import re

import click

from uma_ctl import output, render
from uma_ctl.client import fields_of
from uma_ctl.options import Target, read_stdin, with_target


@click.command()
@with_target
@click.argument("ids", nargs=-1)
@click.option("--no-special", is_flag=True, help="Leave out the text of control tokens.")
def command(target: Target, ids: tuple[str, ...], no_special: bool) -> None:
    """Show the text of token IDS, or of those on standard input: numbers separated by spaces or commas, as `tokenize
    --ids` writes them.
    """
    text = " ".join(ids) or read_stdin("no token ids: give IDS, or pipe them in")
    words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
    if not words:
        raise click.UsageError("there are no token ids")
    if not all(re.fullmatch("[0-9]{1,10}", word) for word in words):
        raise click.UsageError("token ids are whole numbers from 0")
    with target.connect() as client:
        reply = client.call("detokenize", tokens=[int(word) for word in words], unparse_special=not no_special)
    if target.as_json:
        output.line(render.as_json(fields_of(reply)))
    else:
        sink = output.TextSink()
        sink.write(str(reply.get("content", "")))
        sink.end_line()
