"""`uma-ctl socket`: print the path of the socket, for programs such as `nc -U`."""

from __future__ import annotations

import click

from uma_ctl import output, render
from uma_ctl.options import Target, with_target


@click.command()
@with_target
def command(target: Target) -> None:
    """Print the path on which the daemon listens.

    The exit code is 1 if no daemon listens, or if it belongs to a user who is neither you nor root (UMA_TRUST_UIDS).
    """
    with target.connect() as client:
        output.line(render.as_json({"path": client.path}) if target.as_json else client.path)
