"""`uma-ctl tokenize`: the tokens of a text."""

from __future__ import annotations

import click

from uma_ctl import output, render
from uma_ctl.client import fields_of
from uma_ctl.options import Target, read_stdin, with_target


@click.command()
@with_target
@click.argument("text", required=False)
@click.option("--add-special", is_flag=True, help="Add the tokens that the model puts around a prompt, such as BOS.")
@click.option("--no-parse-special", is_flag=True, help="Read the text of control tokens as plain text.")
@click.option("--ids", "only_ids", is_flag=True, help="Print only the ids, on one line.")
@click.option("--count", "only_count", is_flag=True, help="Print only the number of tokens.")
def command(
    target: Target, text: str | None, add_special: bool, no_parse_special: bool, only_ids: bool, only_count: bool
) -> None:
    """Show the tokens of TEXT, or of standard input: one line with id and text per token."""
    if only_ids and only_count:
        raise click.UsageError("--ids or --count, not both")
    content = read_stdin("no text: give TEXT, or pipe it in") if text is None else text
    if not content:
        raise click.UsageError("the text is empty")
    wants_pieces = not (only_ids or only_count)
    with target.connect() as client:
        reply = client.call(
            "tokenize",
            content=content,
            add_special=add_special,
            parse_special=not no_parse_special,
            with_pieces=wants_pieces,
        )
    tokens = render.list_of(reply, "tokens")
    if target.as_json:
        output.line(render.as_json(fields_of(reply)))
    elif only_count:
        output.line(str(len(tokens)))
    elif only_ids:
        output.line(" ".join(map(str, tokens)))
    else:
        output.line(render.pieces(tokens, render.list_of(reply, "pieces")))
