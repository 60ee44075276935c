"""Errors on the client's side, each with its exit status.

0 success, 1 cannot connect or wrong usage, 2 the server refused or failed, 3 the protocol was broken; 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uma_core.errors import BY_CODE

EXIT_OK = 0
EXIT_USAGE = 1
EXIT_SERVER = 2
EXIT_PROTOCOL = 3
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_PIPE = 141  # 128 + SIGPIPE


class CtlError(Exception):
    """A failure with a message for people and an exit status for scripts."""

    exit_status = EXIT_USAGE
    name = "error"  # for machines: failures of the client have no code

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "message": str(self)}


class CannotConnect(CtlError):
    """No daemon listens on the socket, or this user may not connect to it."""

    name = "cannot_connect"


class NoDaemon(CannotConnect):
    """No daemon listens on the socket."""


class StreamFailed(CtlError):
    """Standard input cannot be read, or standard output is closed or cannot be written."""

    name = "stream_failed"


class BrokenProtocol(CtlError):
    """The peer sent bytes that violate the protocol, or hung up before the final event."""

    exit_status = EXIT_PROTOCOL
    name = "broken_protocol"


class NoAnswer(CtlError):
    """The daemon accepted the connection but did not answer in time."""

    exit_status = EXIT_SERVER
    name = "no_answer"


class ServerError(CtlError):
    """An `error` event, or an `eos` with reason "error". `event` is the object with code, name and message."""

    exit_status = EXIT_SERVER
    name = "server_error"

    def __init__(self, event: Mapping[str, Any]) -> None:
        self.event = dict(event)
        self.code = str(event.get("code", ""))
        known = BY_CODE.get(self.code)
        if known is not None and known.spec.exit_status == EXIT_PROTOCOL:
            self.exit_status = EXIT_PROTOCOL
        super().__init__(str(event.get("message", "")) or self.code or "the server gave no reason")

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in self.event.items() if key not in ("id", "event")}
