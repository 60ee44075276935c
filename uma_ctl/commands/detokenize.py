"""`uma-ctl detokenize`: the text of tokens."""

from __future__ import annotations

import re

import click

from uma_ctl import output, render
from uma_ctl.client import fields_of
from uma_ctl.options import Target, read_prompt, with_target


@click.command()
@with_target
@click.argument("ids", nargs=-1)
@click.option("--no-special", is_flag=True, help="Leave out the text of control tokens.")
def command(target: Target, ids: tuple[str, ...], no_special: bool) -> None:
    """Show the text of token IDS, or of those on standard input: numbers between spaces or commas, as `tokenize
    --ids` writes them.
    """
    words = [word for word in re.split(r"[\s,\[\]]+", " ".join(ids) or read_prompt(None)) if word]
    if not all(re.fullmatch("[0-9]{1,10}", word) for word in words):
        raise click.UsageError("token ids are numbers")
    with target.connect() as client:
        reply = client.call("detokenize", tokens=[int(word) for word in words], unparse_special=not no_special)
    if target.as_json:
        output.line(render.as_json(fields_of(reply)))
    else:
        sink = output.TextSink()
        sink.write(str(reply.get("content", "")))
        sink.end_line()
