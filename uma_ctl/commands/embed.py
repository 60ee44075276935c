"""`uma-ctl embed`: embeddings of texts."""

from __future__ import annotations

from typing import Any, TextIO

import click

from uma_core.protocol.embed import EMBED_FIELDS
from uma_ctl import output, render
from uma_ctl.client import fields_of
from uma_ctl.declared import declared_options, given
from uma_ctl.options import Target, with_target
from uma_ctl.texts import inputs_of


@click.command()
@with_target
@click.argument("texts", nargs=-1)
@click.option(
    "--file",
    "-f",
    "files",
    type=click.File("r"),
    multiple=True,
    help="Embed this file's text; -: standard input. May be repeated.",
)
@click.option("--lines", is_flag=True, help="Treat each line of a file, or of standard input, as a separate input.")
@declared_options(EMBED_FIELDS, "pooling", "normalize", "dimensions", "encoding", "truncate", "priority", "timeout_ms")
def command(target: Target, texts: tuple[str, ...], files: tuple[TextIO, ...], lines: bool, **options: Any) -> None:
    """Compute embeddings of TEXTS, of files, or of standard input: a line of JSON for each."""
    inputs = inputs_of(texts, files, lines)
    with target.connect() as client:
        client.set_timeout(None)
        reply = client.call("embed", input=inputs, **given(options))
    if target.as_json:
        output.line(render.as_json(fields_of(reply)))
        return
    for vector in render.list_of(reply, "embeddings"):
        output.line(render.as_json(vector))
