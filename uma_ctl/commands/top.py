"""`uma-ctl top`: a live dashboard."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import click

from uma_ctl import render, units
from uma_ctl.client import Client
from uma_ctl.dashboard import Dashboard, Key, parse_keys
from uma_ctl.errors import CtlError, ServerError
from uma_ctl.options import Target, with_target
from uma_ctl.ranges import seconds

DUMB = ("dumb", "unknown")  # terminals on which rich draws nothing


@click.command()
@with_target
@click.option(
    "--interval",
    type=seconds(0.05),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Between two screens.",
)
def command(target: Target, interval: float) -> None:
    """Watch streams, queues, tick time, KV and the guard; cancel a request or drain.

    Keys: up and down select a request, c cancels it, d twice drains (or ends a drain), q quits.
    """
    if find_spec("rich") is None:
        raise click.UsageError("the dashboard needs the package rich: pip install rich; or use: uma-ctl status --watch")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the dashboard needs a terminal; use: uma-ctl status --watch")
    if os.environ.get("TERM", "").lower() in DUMB:
        raise click.UsageError(
            f"the dashboard needs a terminal with a movable cursor, and TERM is {os.environ['TERM']}; "
            "use: uma-ctl status --watch"
        )
    Top(target, interval).run()


class Top:
    """The loop: fetch, draw, wait for keys."""

    def __init__(self, target: Target, interval: float) -> None:
        self.target = target
        self.interval = interval
        self.board = Dashboard()
        self._client: Client | None = None

    def run(self) -> None:
        """Draw until `q`. A failure of the first fetch is raised; later failures are shown and retried."""
        from rich.live import Live  # rich is an extra: only this command needs it

        from uma_ctl.top_view import screen

        self._fetch()
        with raw_keys() as descriptor, Live(screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(self.board, *live.console.size), refresh=True)
                if not all(self.on_key(key) for key in wait_keys(descriptor, self.interval)):
                    return
                self._refresh()

    def _refresh(self) -> None:
        try:
            self._fetch()
        except CtlError as error:
            self._hang_up()
            self.board.message = str(error)
            if not isinstance(error, ServerError):  # the rest of the screen keeps the last replies
                self.board.status = {**self.board.status, "state": "unreachable"}

    def _fetch(self) -> None:
        client = self._connection()
        status, metrics = client.call("status"), render.sub(client.call("metrics"), "metrics")
        sessions = render.rows_of(client.call("sessions"), "sessions")
        self.board.update(status, metrics, sessions, time.monotonic())

    def _connection(self) -> Client:
        if self._client is None:
            self._client = self.target.connect()
            self.board.message = ""
        return self._client

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def on_key(self, key: Key) -> bool:
        """Act on a key. False: quit."""
        was_armed, self.board.is_drain_armed = self.board.is_drain_armed, False
        self.board.message = ""
        if key is Key.QUIT:
            return False
        if key in (Key.UP, Key.DOWN):
            self.board.move(-1 if key is Key.UP else 1)
        elif key is Key.CANCEL:
            self.on_cancel()
        elif key is Key.DRAIN:
            self.on_drain(was_armed)
        return True

    def on_cancel(self) -> None:
        session = self.board.selected_session()
        if session is None:
            self.board.message = "no request is selected"
            return
        request_id = str(session.get("request_id"))
        reply = self._try("cancel", request_id, conn=session.get("conn"))
        if reply is not None:
            self.board.message = f"{'cancelled' if reply.get('found') else 'already gone'}: {units.text(request_id)}"

    def on_drain(self, was_armed: bool) -> None:
        is_draining = self.board.status.get("state") == "draining"
        operation = "undrain" if is_draining else "drain"
        if not was_armed:
            self.board.is_drain_armed = True
            self.board.message = f"press d again to {operation}"
        elif self._try(operation, None) is not None:
            self.board.message = f"{operation} requested"

    def _try(self, operation: str, request_id: str | None, **fields: Any) -> dict[str, Any] | None:
        try:
            return self._connection().call(operation, request_id, **fields)
        except CtlError as error:
            if not isinstance(error, ServerError):
                self._hang_up()
            self.board.message = render.error_line(error.to_dict())
            return None


@contextmanager
def raw_keys() -> Iterator[int]:
    """Read the terminal key by key, without echo; its settings are restored at the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def wait_keys(descriptor: int, seconds: float) -> list[Key]:
    """Wait until a key is pressed or the time has passed."""
    ready, _, _ = select.select([descriptor], [], [], seconds)
    return parse_keys(os.read(descriptor, 64) or b"q") if ready else []  # end of input: the terminal is gone
