"""Log lines about requests: who sent them, under which id, and how they ended.

Rules: one line at info per end or refusal; the prompt is a private field (`log.prompts`); answers are never logged.
"""

from __future__ import annotations

import logging
from typing import Any

from uma_core.errors import UmaError
from uma_core.protocol.messages import Message
from uma_core.server.io.client import Client
from uma_core.server.operations.intake import Job
from uma_core.session.events import Final

log = logging.getLogger(__name__)


def received(job: Job, wants_prompts: bool) -> None:
    """Log that a generate request is about to be read: at info if prompts are logged, else at debug."""
    level = logging.INFO if wants_prompts else logging.DEBUG
    if log.isEnabledFor(level):
        request, peer = job.request, job.peer
        asked: Any = (
            request.prompt if request.prompt is not None else request.messages or request.infill or request.tokens
        )
        if job.source is not None and wants_prompts:
            asked = job.source.payload.decode()
        extra = {
            "conn": job.conn_id,
            "uid": peer.uid,
            "pid": peer.pid,
            "request": request.id,
            "n_bytes": job.n_bytes,
            "prompt": asked,
        }
        log.log(level, "received", extra=extra)


def ended(client: Client, event: Final) -> None:
    """Log that an accepted request got its final event."""
    fields: dict[str, Any] = {**_who(client), "request": event.request_id, **event.usage}
    fields |= {name: event.timing[name] for name in ("ttft_ms", "total_ms") if name in event.timing}
    if event.error is None:
        log.info("ended: %s", event.reason.value, extra=fields)
    else:
        log.warning("ended: %s, %s", event.reason.value, event.error, extra=fields)


def refused(client: Client, what: str, request_id: str, error: UmaError) -> None:
    """Log that an operation was answered with an error."""
    log.info("%s refused: %s", what, error, extra={**_who(client), "request": request_id})


def failed(client: Client, message: Message) -> None:
    """Log that a bug of ours ended an operation. Call it while handling the exception."""
    log.exception("%s failed", message.op.name, extra={**_who(client), "request": message.id})


def _who(client: Client) -> dict[str, Any]:
    return {"conn": client.conn_id, "uid": client.peer.uid, "pid": client.peer.pid}
