"""`uma-ctl status`: show the status once or repeatedly, or wait for a state."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
from click.core import ParameterSource

from uma_ctl import output, render
from uma_ctl.client import DEFAULT_TIMEOUT_S, Event, fields_of
from uma_ctl.errors import EXIT_OK, EXIT_SERVER, BrokenProtocol, CannotConnect, CtlError, NoAnswer, NoDaemon
from uma_ctl.options import Target, with_target
from uma_ctl.ranges import seconds

CLEAR = "\033[H\033[2J\033[3J"
POLL_S = 0.1
WAIT_S = 300.0  # the first start measures the model, which took more than a minute on a busy machine
LEAST_S = 1.0  # time that one answer may take even if the deadline is nearer
WAIT_STATES = ("ready", "degraded", "draining", "stopped")


@click.command()
@with_target
@click.option("-v", "--verbose", is_flag=True, help="Also show the reasons for the last tick's plan.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C, even while the daemon is gone.")
@click.option("--interval", type=seconds(0.05), default=1.0, show_default=True, metavar="SECONDS", help="With --watch.")
@click.option(
    "--wait", "wanted", type=click.Choice(WAIT_STATES), help="Return once the daemon is in this state (stopped: gone)."
)
@click.option("--timeout", type=seconds(0), default=WAIT_S, show_default=True, metavar="SECONDS", help="With --wait.")
def command(target: Target, verbose: bool, watch: bool, interval: float, wanted: str | None, timeout: float) -> int:
    """Show state, model, queues, latency, KV and memory.

    The exit code is 0 when the daemon is ready, 2 when it is in any other state, 1 when it cannot be reached. With
    --wait it is 0 when the state was reached in time.
    """
    _check_pairs(watch, wanted)
    if wanted:
        return _wait(target, wanted, time.monotonic() + timeout)
    if watch:
        return _watch(target, interval, verbose)
    return _show(target, ask(target), verbose)


def _check_pairs(watch: bool, wanted: str | None) -> None:
    """Refuse an option that would do nothing. Raises: click.UsageError."""
    if watch and wanted:
        raise click.UsageError("--watch or --wait, not both")
    for name, partner, is_there in (("interval", "--watch", watch), ("timeout", "--wait", bool(wanted))):
        source = click.get_current_context().get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE and not is_there:
            raise click.UsageError(f"--{name} goes with {partner}")


def ask(target: Target, timeout_s: float = DEFAULT_TIMEOUT_S) -> Event:
    """Fetch the status over a connection of its own."""
    with target.connect(timeout_s) as client:
        return fields_of(client.call("status"))


def _text(target: Target, fields: Event, is_verbose: bool) -> str:
    return render.as_json(fields) if target.as_json else render.status(fields, is_verbose)


def _show(target: Target, fields: Event, is_verbose: bool) -> int:
    output.line(_text(target, fields, is_verbose))
    return EXIT_OK if fields.get("state") == "ready" else EXIT_SERVER


def _watch(target: Target, interval: float, is_verbose: bool) -> int:
    """Show the status repeatedly: in place on a terminal, elsewhere one after the other. The daemon may go away and
    come back.
    """
    clear = CLEAR if sys.stdout.isatty() and not target.as_json else ""
    end = "" if target.as_json else "\n"
    while True:
        try:
            shown = _text(target, ask(target), is_verbose)
        except CtlError as error:
            shown = render.as_json({"error": error.to_dict()}) if target.as_json else str(error)
        output.line(clear + shown + end)
        time.sleep(interval)


def _wait(target: Target, wanted: str, deadline: float) -> int:
    """Poll until the state is reached. Raises: the last failure, or NoAnswer, once the deadline is past."""
    while True:
        fields, failure = _poll(target, deadline)
        if wanted == "stopped" and isinstance(failure, NoDaemon):
            return EXIT_OK
        if fields is not None and fields.get("state") == wanted:
            output.line(render.as_json(fields) if target.as_json else wanted)
            return EXIT_OK
        if time.monotonic() >= deadline:
            raise failure or NoAnswer(f"the daemon is {(fields or {}).get('state')}, not {wanted}")
        time.sleep(POLL_S)


def _poll(target: Target, deadline: float) -> tuple[dict[str, Any] | None, CtlError | None]:
    """Ask once, and wait for the answer until the deadline, but for at least `LEAST_S`."""
    try:
        return ask(target, min(DEFAULT_TIMEOUT_S, max(LEAST_S, deadline - time.monotonic()))), None
    except (CannotConnect, NoAnswer, BrokenProtocol) as error:  # it may be starting or stopping
        return None, error
