"""One function per operation: what the I/O thread does with a message. None of them blocks.

Raises: UmaError, which the app turns into the message's `error` event.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from uma_core.config.options import Config
from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.messages import Message
from uma_core.protocol.ops import OPS, PROTOCOL_VERSION, Op
from uma_core.server.io.access import is_admin, is_trusted, priority_for
from uma_core.server.io.client import Client
from uma_core.server.io.ports import Answer, Services
from uma_core.server.operations import texts
from uma_core.server.operations.intake import Job, Task
from uma_core.server.operations.large import Reader
from uma_core.server.operations.sizes import input_bytes, text_bytes
from uma_core.types import Request


class Context(Protocol):
    """What handlers need from the app."""

    services: Services
    reader: Reader

    def find_client(self, conn_id: int) -> Client | None: ...

    def begin(self, job: Job) -> None:
        """Start a generate request. Raises: OVERLOADED."""

    def put(self, task: Task) -> None:
        """Queue it for the intake. Raises: OVERLOADED."""

    def cancel(self, conn_id: int, request_id: str, index: int | None) -> bool:
        """Cancel one of the request's answers; None: all of them. False: no such request is in progress."""

    def reply(self, client: Client, message: Message, data: dict[str, Any]) -> None: ...

    def reply_later(self, client: Client, message: Message) -> Answer:
        """Return a function that sends the reply; any thread may call it."""

    def now_ns(self) -> int: ...


def on_generate(ctx: Context, client: Client, message: Message) -> None:
    assert message.request is not None
    _begin(ctx, client, message, message.request, bool(message.request.account))


def on_embed(ctx: Context, client: Client, message: Message) -> None:
    """Embed and rerank: like generate, except that the size of the reply is known beforehand."""
    assert message.request is not None and message.request.embed is not None
    config = ctx.services.config()
    ipc, is_gateway = config.ipc, is_trusted(client.peer, config.access)
    reply_bytes = max(ipc.tx_hard_bytes, ipc.trusted_frame_bytes) if is_gateway else ipc.tx_hard_bytes
    embed = replace(message.request.embed, reply_bytes=reply_bytes)
    _begin(ctx, client, message, replace(message.request, embed=embed), is_gateway)


def _begin(ctx: Context, client: Client, message: Message, request: Request, may_be_long: bool) -> None:
    closed = ctx.services.gate()
    if closed is not None:
        raise closed
    config = ctx.services.config()
    if request.account:
        check_trusted(client, config, "account")
    n_bytes = message.source.n_bytes if message.source is not None else input_bytes(message.args)
    check_prompt(n_bytes, may_be_long, config)
    n_bytes += text_bytes(request.constraint.value) if request.constraint is not None else 0  # it is parsed too
    request = replace(request, priority=priority_for(client.peer, request.priority, config.access))
    ctx.begin(Job(client.conn_id, client.peer, request, ctx.now_ns(), n_bytes, message.source))


def check_prompt(n_bytes: int, may_be_long: bool, config: Config) -> None:
    """Raises: PROMPT_TOO_LARGE."""
    limits = config.limits
    limit = max(limits.max_prompt_bytes, limits.trusted_prompt_bytes) if may_be_long else limits.max_prompt_bytes
    if n_bytes > limit:
        raise UmaError(
            ErrorCode.PROMPT_TOO_LARGE,
            f"the prompt has {n_bytes} bytes, the cap is {limit}",
            n_bytes=n_bytes,
            limit=limit,
        )


def check_trusted(client: Client, config: Config, what: str) -> None:
    """Raises: ADMIN_ONLY."""
    if not is_trusted(client.peer, config.access):
        message = f"`{what}` is for gateways: the daemon's owner, root and `access.trusted_uids`"
        raise UmaError(ErrorCode.ADMIN_ONLY, message, field=what)


def on_cancel(ctx: Context, client: Client, message: Message) -> None:
    conn_id = message.args["conn"]
    if conn_id is None or conn_id == client.conn_id:
        ctx.reply(client, message, {"found": ctx.cancel(client.conn_id, message.id, message.args["index"])})
        return
    target = ctx.find_client(conn_id)
    if target is not None and target.peer.uid != client.peer.uid:
        check_admin(ctx, client)
    ctx.reply(client, message, {"found": target is not None and ctx.cancel(conn_id, message.id, message.args["index"])})


def on_text(ctx: Context, client: Client, message: Message) -> None:
    """Tokenize, detokenize, count, prefix_hashes, apply_template: the intake answers, in queue order.

    A drain does not refuse them.
    """
    config, args = ctx.services.config(), message.args
    op, source, cap_bytes = message.op.name, message.source, config.ipc.tx_hard_bytes
    n_bytes = source.n_bytes if source is not None else input_bytes(args)
    check_prompt(n_bytes, is_trusted(client.peer, config.access), config)
    reader = ctx.reader
    work = (
        (lambda text: reader.answer(text, op, source, cap_bytes))
        if source
        else functools.partial(texts.answer, op, args, cap_bytes)
    )
    ctx.put(Task(client.conn_id, ctx.now_ns(), n_bytes, work, ctx.reply_later(client, message), source is not None))


def on_status(ctx: Context, client: Client, message: Message) -> None:
    ctx.reply(client, message, ctx.services.status())


def on_health(ctx: Context, client: Client, message: Message) -> None:
    ctx.reply(client, message, {**ctx.services.health(), "protocol": PROTOCOL_VERSION})


def on_metrics(ctx: Context, client: Client, message: Message) -> None:
    if message.args["format"] == "prometheus":
        ctx.reply(client, message, {"text": ctx.services.prometheus()})
    else:
        ctx.reply(client, message, {"metrics": ctx.services.metrics()})


def on_sessions(ctx: Context, client: Client, message: Message) -> None:
    rows = ctx.services.sessions()
    if not is_admin(client.peer, ctx.services.config().access):
        rows = [
            row if row["uid"] == client.peer.uid else {k: v for k, v in row.items() if k != "metadata"} for row in rows
        ]
    ctx.reply(client, message, {"sessions": rows})


def on_props(ctx: Context, client: Client, message: Message) -> None:
    is_gateway = is_trusted(client.peer, ctx.services.config().access)
    ctx.reply(client, message, ctx.services.props(is_gateway))


def on_digest(ctx: Context, client: Client, message: Message) -> None:
    """Return hashes of the prefixes that this peer's requests could reuse. Those of other users are left out: each
    user's prompts have a tree of their own.
    """
    check_trusted(client, ctx.services.config(), "digest")
    texts.to_key(message.args["key"])
    ctx.services.admin("digest", {**message.args, "uid": client.peer.uid}, ctx.reply_later(client, message))


def on_help(ctx: Context, client: Client, message: Message) -> None:
    ctx.reply(client, message, {"protocol": PROTOCOL_VERSION, "ops": [describe(op) for op in OPS.values()]})


def on_admin(ctx: Context, client: Client, message: Message) -> None:
    """Drain, undrain, reload, cache, trace: the daemon answers when it is done."""
    check_admin(ctx, client)
    ctx.services.admin(message.op.name, message.args, ctx.reply_later(client, message))


def check_admin(ctx: Context, client: Client) -> None:
    """Raises: ADMIN_ONLY."""
    if not is_admin(client.peer, ctx.services.config().access):
        raise UmaError(ErrorCode.ADMIN_ONLY)


def describe(op: Op) -> dict[str, Any]:
    fields = [
        {"name": field.name, "type": field.kind.value, "default": field.default, "help": field.help}
        for field in op.fields
    ]
    return {"type": op.name, "help": op.help, "is_admin": op.is_admin, "fields": fields}


HANDLERS: dict[str, Callable[[Context, Client, Message], None]] = {
    "generate": on_generate,
    "embed": on_embed,
    "rerank": on_embed,
    "cancel": on_cancel,
    **dict.fromkeys(texts.WORK, on_text),
    "status": on_status,
    "metrics": on_metrics,
    "health": on_health,
    "sessions": on_sessions,
    "digest": on_digest,
    "props": on_props,
    "help": on_help,
    **{op.name: on_admin for op in OPS.values() if op.is_admin},
}
