"""`uma-ctl rerank`: order documents by how well they answer a query."""

from __future__ import annotations

from typing import Any, TextIO

import click

from uma_core.protocol.embed import RERANK_FIELDS
from uma_ctl import output, render
from uma_ctl.client import fields_of
from uma_ctl.declared import declared_options, given
from uma_ctl.options import Target, with_target
from uma_ctl.texts import inputs_of


@click.command()
@with_target
@click.argument("query")
@click.argument("documents", nargs=-1)
@click.option(
    "--file",
    "-f",
    "files",
    type=click.File("r"),
    multiple=True,
    help="Score this file's text; -: standard input. May be repeated.",
)
@click.option("--lines", is_flag=True, help="Treat each line of a file, or of standard input, as a separate document.")
@declared_options(RERANK_FIELDS, "top_n", "truncate", "priority", "timeout_ms")
def command(
    target: Target, query: str, documents: tuple[str, ...], files: tuple[TextIO, ...], lines: bool, **options: Any
) -> None:
    """Score DOCUMENTS, files, or standard input for QUERY.

    Prints a line for each, best first: score, index from 0, and the document's first line.
    """
    texts = inputs_of(documents, files, lines)
    with target.connect() as client:
        client.set_timeout(None)
        reply = client.call("rerank", query=query, documents=texts, **given(options))
    if target.as_json:
        output.line(render.as_json(fields_of(reply)))
        return
    for result in render.list_of(reply, "results"):
        first = (texts[result["index"]].strip().splitlines() or [""])[0]
        output.line(f"{result['relevance_score']:.6g}\t{result['index']}\t{first}")
