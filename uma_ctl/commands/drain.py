"""`uma-ctl drain`: refuse new work, then wait for the running streams."""

from __future__ import annotations

import time

import click

from uma_ctl import output, render, units
from uma_ctl.client import Event, fields_of
from uma_ctl.errors import EXIT_OK, BrokenProtocol, NoDaemon, ServerError
from uma_ctl.options import Target, with_target
from uma_ctl.ranges import seconds

POLL_S = 0.5


@click.command()
@with_target
@click.option(
    "--timeout",
    type=seconds(0),
    metavar="SECONDS",
    help="Time for running streams; the rest then ends with reason `draining`.",
)
@click.option(
    "--then",
    type=click.Choice(["stay", "exit", "reload"]),
    default="stay",
    show_default=True,
    help="What the daemon does once it is drained.",
)
@click.option("--no-wait", is_flag=True, help="Return as soon as the drain has begun.")
def command(target: Target, timeout: float | None, then: str, no_wait: bool) -> int:
    """Refuse new work and let running streams finish. Repeating it is harmless; `uma-ctl undrain` reverts it."""
    with target.connect() as client:
        begun = fields_of(client.call("drain", timeout_ms=None if timeout is None else timeout * 1000, then=then))
    if no_wait:
        output.line(render.as_json(begun) if target.as_json else _progress(begun))
        return EXIT_OK
    last = _follow(target, begun)
    failure = last.pop("reload", {}).get("error")
    if then == "reload" and failure:
        raise ServerError(failure)
    output.line(render.as_json(last) if target.as_json else units.text(last.get("state")))
    return EXIT_OK


def _follow(target: Target, seen: Event) -> Event:
    """Show the remaining work until there is none and `--then` has been carried out: the daemon has exited, or is in
    another state.
    """
    shown = ""
    while seen.get("state") == "draining" and (seen.get("remaining") or seen.get("then", "stay") != "stay"):
        if _progress(seen) != shown:
            shown = _progress(seen)
            output.note(shown)
        time.sleep(POLL_S)
        seen = _ask(target)
    return seen


def _ask(target: Target) -> Event:
    try:
        with target.connect() as client:
            fields = client.call("status")
    except NoDaemon:
        return {"state": "stopped"}
    except BrokenProtocol as error:  # the daemon hung up: its last streams have ended, and it is stopping
        return {"state": "stopping", "message": str(error)}
    return {"state": fields.get("state"), **render.sub(fields, "drain"), "reload": render.sub(fields, "reload")}


def _progress(fields: Event) -> str:
    estimate = fields.get("estimate_ms")
    about = f", about {units.ms(estimate)}" if estimate is not None else ""
    return f"{units.text(fields.get('state'))}: {units.counted(fields.get('remaining'), 'request')} left{about}"
