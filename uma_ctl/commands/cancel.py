"""`uma-ctl cancel`: end a request of any connection."""

from __future__ import annotations

import click

from uma_ctl import output, render
from uma_ctl.client import Client, fields_of
from uma_ctl.errors import EXIT_OK, EXIT_SERVER
from uma_ctl.options import Target, with_target


@click.command()
@with_target
@click.argument("request_id", metavar="ID")
@click.option("--conn", type=click.IntRange(0), help="Connection of the request, if the id alone is not unique.")
def command(target: Target, request_id: str, conn: int | None) -> int:
    """End the request ID, as `uma-ctl sessions` shows it. Its client keeps the text that was generated so far."""
    with target.connect() as client:
        conn = _find(client, request_id) if conn is None else conn
        fields = {"found": False} if conn is None else fields_of(client.call("cancel", request_id, conn=conn))
    is_found = bool(fields.get("found"))
    if target.as_json:
        output.line(render.as_json(fields))
    else:
        output.line(f"cancelled {request_id}" if is_found else f"no request {request_id} is in flight")
    return EXIT_OK if is_found else EXIT_SERVER


def _find(client: Client, request_id: str) -> int | None:
    """Return the connection on which a request of this id is in flight. Raises: UsageError if there are several."""
    items = render.rows_of(client.call("sessions"), "sessions")
    conns = sorted({item["conn"] for item in items if str(item.get("request_id")) == request_id and "conn" in item})
    if len(conns) > 1:
        raise click.UsageError(
            f"{request_id} is in flight on connections {', '.join(map(str, conns))}; choose one with --conn"
        )
    return conns[0] if conns else None
