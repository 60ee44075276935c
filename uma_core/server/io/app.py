"""The I/O thread's application: connects the loop, the listeners, the clients and the compute side's events.

Once per turn of the loop, before it sleeps, the compute side's events are encoded and every client with unsent bytes
gets one `send` call, so the tokens of one tick cost one system call per client.
"""

from __future__ import annotations

import itertools
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from uma_core.config.options import Config, IpcOptions, ns
from uma_core.constraint.compiler import Compiler
from uma_core.errors import ErrorCode, UmaError
from uma_core.metrics.catalog import Registry
from uma_core.peer import peer_of
from uma_core.protocol import events as wire
from uma_core.protocol.connection import Connection, Limits
from uma_core.protocol.framing import encode_frame
from uma_core.protocol.messages import Large, Message, Unfit
from uma_core.server.io import journal
from uma_core.server.io.access import is_admin, is_trusted, may_connect
from uma_core.server.io.client import Client
from uma_core.server.io.ledger import Ledger
from uma_core.server.io.listener import BoundSocket, Listener
from uma_core.server.io.loop import Loop
from uma_core.server.io.meters import IoMeters
from uma_core.server.io.ports import Answer, ComputePort, Services
from uma_core.server.operations.embedding import reply_json
from uma_core.server.operations.handlers import HANDLERS
from uma_core.server.operations.intake import NO_USAGE, Decoding, Encoding, Intake, Job, Task
from uma_core.server.operations.large import LARGE_BYTES, Local, Reader
from uma_core.session.events import (
    Accepted,
    Cancel,
    End,
    Event,
    Final,
    HangUp,
    Hold,
    Progress,
    Prompt,
    Queued,
    Refused,
    Stale,
    Token,
)
from uma_core.types import FinishReason, Peer, n_extra

log = logging.getLogger(__name__)

RESERVE_PLACES = 4  # connections above the cap that an administrator may open for anything but generate
REFUSING_MAX = 64  # refused connections that stay open until they are told why; further ones are told at once
INTAKE_MAX_PER_SESSION = 4  # jobs that may wait for the intake, per session that may exist
SHUTDOWN_FLUSH_S = 2.0


class IoApp:
    """See the module docstring. Everything runs on the loop's thread unless stated otherwise."""

    def __init__(
        self, loop: Loop, compute: ComputePort, services: Services, registry: Registry, reader: Reader | None = None
    ) -> None:
        self.loop = loop
        self.services = services
        self.meters = IoMeters(registry)
        self.ledger: Ledger[Job] = Ledger()
        self.clients: dict[int, Client] = {}
        self._n_refused = 0  # clients that are being refused, or use a reserved place: they take no other client's
        self.reader = reader or Local()  # for large requests
        self.intake = Intake(
            services.text, compute.submit, self._post, loop.clock, Compiler(registry).compile, self.reader
        )
        self._compute = compute
        self._posted: deque[Event] = deque()  # from the intake
        self._dirty: dict[Client, None] = {}
        self._owed: dict[int, tuple[Client, Callable[[UmaError], None]]] = {}  # operations to be answered later
        self._owed_numbers = itertools.count()
        self._conn_ids = itertools.count(1)
        self._listeners: list[Listener] = []
        loop.before_wait.append(self._before_wait)

    def start(self, sockets: list[BoundSocket]) -> None:
        """Start accepting connections."""
        self._listeners = [Listener(self.loop, bound, self._accept, self._shed) for bound in sockets]
        self.intake.start()

    def check_sockets(self) -> None:
        """Keep the daemon reachable. Call it regularly."""
        for listener in self._listeners:
            listener.check()

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()

    def close(self) -> None:
        """Deliver what is left, for a short time, then close everything. The compute side has ended its sessions."""
        self.stop_accepting()
        self.intake.stop()
        self.loop.run_calls()  # replies that other threads queued for this one
        self._before_wait()
        self.end_all(UmaError(ErrorCode.SHUTTING_DOWN))  # requests whose Submit came too late, or whose engine is stuck
        self._end_owed(UmaError(ErrorCode.SHUTTING_DOWN))
        for client in list(self.clients.values()):
            client.close_when_written()
        deadline_ns = self.loop.clock.now_ns() + int(SHUTDOWN_FLUSH_S * 1e9)
        while self.has_unsent() and self.loop.clock.now_ns() < deadline_ns:
            self.loop.turn(0.05)
        for client in list(self.clients.values()):
            client.drop("shutting down")

    def apply(self, config: Config) -> None:
        """Apply a new configuration to the values that connections do not read at every use."""
        for client in self.clients.values():
            client.restart_idle(ns(config.ipc.idle_timeout_ms))

    def end_all(self, error: UmaError) -> None:
        """Send a final event to every request in progress, because the compute side no longer will."""
        for (conn_id, request_id), is_accepted in self.ledger.under_way():
            client = self.clients.get(conn_id)
            if client is None or not self.ledger.end((conn_id, request_id)):
                continue
            if is_accepted:
                client.send(wire.Eos(request_id, FinishReason.ERROR, "", dict(NO_USAGE), {}, error))
            else:
                client.send(wire.Error(request_id, error))

    def _end_owed(self, error: UmaError) -> None:
        """Answer every pending operation with this error."""
        while self._owed:  # a client may send another operation after its answer
            _, finish = next(iter(self._owed.values()))
            finish(error)

    def has_unsent(self) -> bool:
        """Whether any client has unsent bytes."""
        return any(client.n_unsent for client in self.clients.values())

    # connections

    def ipc(self) -> IpcOptions:
        return self.services.config().ipc

    def _accept(self, sock: socket.socket) -> None:
        config, peer = self.services.config(), peer_of(sock)
        refusal, is_reserve, limit = None, False, config.ipc.max_connections
        n_served = len(self.clients) - self._n_refused
        if not may_connect(peer, config.access):
            refusal = UmaError(ErrorCode.FORBIDDEN)
        elif n_served >= limit and (n_served >= limit + n_extra(limit) or self._n_connections(peer)):
            # places above the limit are only for processes without a connection
            n_held = self._n_connections(peer)
            message = f"{n_served} connections are open, {n_held} of them yours; the limit is {limit}"
            refusal = UmaError(ErrorCode.TOO_MANY_SESSIONS, message, n_held=n_held, limit=limit)
            is_reserve = self._has_reserve_for(peer)
        if refusal is not None and not is_reserve and self._n_refused >= REFUSING_MAX:
            with sock:
                self._tell_shed(sock)
            return
        self._open(sock, peer, refusal, is_reserve)

    def _n_connections(self, peer: Peer) -> int:
        """Count the connections of the peer's process."""
        return sum((client.peer.uid, client.peer.pid) == (peer.uid, peer.pid) for client in self.clients.values())

    def _has_reserve_for(self, peer: Peer) -> bool:
        """Whether a reserved place is left for this administrator, so that clients that fill the daemon cannot lock
        administrators out.
        """
        n_taken = sum(client.is_reserve for client in self.clients.values())
        return n_taken < RESERVE_PLACES and is_admin(peer, self.services.config().access)

    def _open(self, sock: socket.socket, peer: Peer, refusal: UmaError | None, is_reserve: bool) -> None:
        config = self.services.config()
        ipc, cap_bytes = config.ipc, config.ipc.max_frame_bytes
        frame_bytes = max(cap_bytes, ipc.trusted_frame_bytes) if is_trusted(peer, config.access) else cap_bytes
        connection = Connection(Limits(frame_bytes, cap_bytes, config.limits.max_in_flight, ipc.echo, LARGE_BYTES))
        client = Client(self, sock, next(self._conn_ids), peer, connection, refusal, is_reserve)
        self.clients[client.conn_id] = client
        self._n_refused += refusal is not None
        self.meters.connections_total.add()
        self.meters.connections.set(len(self.clients))
        what = "is limited to operations" if is_reserve else f"is refused: {refusal}" if refusal else "connected"
        log.log(logging.INFO if refusal else logging.DEBUG, "%r %s", client, what)

    def _shed(self, sock: socket.socket, can_keep: bool) -> bool:
        """Handle a connection that has no descriptor. True: keep it, because its user is an administrator."""
        peer = peer_of(sock)
        if can_keep and self._has_reserve_for(peer):
            self._open(sock, peer, UmaError(ErrorCode.TOO_MANY_SESSIONS, "the daemon is out of file descriptors"), True)
            return True
        self._tell_shed(sock)
        return False

    def _tell_shed(self, sock: socket.socket) -> None:
        """Tell a client that there is no room, without registering it."""
        error = UmaError(ErrorCode.TOO_MANY_SESSIONS, "no room for another connection")
        self.meters.count_error(error.error)
        log.warning("connection refused: %s", error)
        try:
            sock.send(encode_frame(wire.error_json(None, error)))
        except OSError as gone:
            log.debug("the client had already left: %s", gone)

    def on_dirty(self, client: Client) -> None:
        self._dirty[client] = None

    def on_hold(self, client: Client, is_held: bool) -> None:
        self._compute.submit(Hold(client.conn_id, is_held))

    def on_abandon(self, client: Client) -> None:
        self.intake.hang_up(client.conn_id)
        self._compute.submit(HangUp(client.conn_id))
        self.ledger.forget(client.conn_id, list(client.connection.in_flight))
        self._owed = {number: owed for number, owed in self._owed.items() if owed[0] is not client}

    def on_gone(self, client: Client) -> None:
        self._dirty.pop(client, None)
        del self.clients[client.conn_id]
        self._n_refused -= client.refusal is not None
        self.meters.connections.set(len(self.clients))

    # messages

    def on_message(self, client: Client, message: Message) -> None:
        refusal = None if client.is_reserve and message.op.name != "generate" else client.refusal
        try:
            if refusal is not None:
                raise refusal
            HANDLERS[message.op.name](self, client, message)
        except UmaError as error:
            self._fail(client, message, error)
        except Exception:  # a bug in a handler ends its message, not the thread that serves everybody
            journal.failed(client, message)
            self._fail(client, message, UmaError(ErrorCode.INTERNAL))
        if refusal is not None:
            client.close_when_written()

    def on_large(self, client: Client, large: Large) -> None:
        def answer(outcome: Message | Unfit) -> None:
            self.loop.call_soon(lambda: client.resume(outcome))

        self.intake.put(Decoding(client.conn_id, self.now_ns(), large.payload, answer))

    def _fail(self, client: Client, message: Message, error: UmaError) -> None:
        journal.refused(client, message.op.name, message.id, error)
        if message.op.name == "cancel":
            error.detail["id"] = message.wire_id
        client.send(wire.Error(_own_id(message), error))

    def now_ns(self) -> int:
        return self.loop.clock.now_ns()

    def find_client(self, conn_id: int) -> Client | None:
        return self.clients.get(conn_id)

    def put(self, task: Task) -> None:
        self._check_intake(self.services.config())
        self.intake.put(task)

    def _check_intake(self, config: Config) -> None:
        if self.intake.n_jobs >= INTAKE_MAX_PER_SESSION * config.limits.max_sessions:
            raise UmaError(
                ErrorCode.OVERLOADED, "too many prompts are waiting", retry_after_ms=config.drain.retry_after_ms
            )

    def begin(self, job: Job) -> None:
        config = self.services.config()
        self._check_intake(config)
        journal.received(job, config.log.prompts)
        self.ledger.open(job.key, job)
        self.intake.put(job)

    def cancel(self, conn_id: int, request_id: str, index: int | None) -> bool:
        known = self.ledger.find((conn_id, request_id))
        if known is None or not (index is None or index < known.request.n_answers):
            return False
        if not self.intake.cancel(conn_id, request_id, index):
            job = self.ledger.pending((conn_id, request_id))
            if job is not None:
                job.cancel(index)  # in case it comes back as stale
            self._compute.submit(Cancel(conn_id, request_id, index))
        return True

    def reply(self, client: Client, message: Message, data: dict[str, Any] | bytes) -> None:
        try:
            client.send(wire.Reply(_own_id(message), message.op.name, data, message.wire_id))
        except (TypeError, ValueError):
            log.exception("%r: the reply to %s is not JSON", client, message.op.name)
            self._fail(client, message, UmaError(ErrorCode.INTERNAL))

    def reply_later(self, client: Client, message: Message) -> Answer:
        number = next(self._owed_numbers)

        def finish(outcome: dict[str, Any] | bytes | UmaError) -> None:
            is_owed = self._owed.pop(number, None) is not None
            if client.is_abandoned or not is_owed:
                return
            if isinstance(outcome, UmaError):
                self._fail(client, message, outcome)
            else:
                if message.op.is_admin and isinstance(outcome, bytes):
                    client.expect(len(outcome))
                self.reply(client, message, outcome)
            client.pump()

        self._owed[number] = client, finish
        return lambda outcome: self.loop.call_soon(lambda: finish(outcome))

    # events of the compute side

    def _post(self, event: Event) -> None:
        """Queue an event. For any thread."""
        self._posted.append(event)
        self.loop.wake()

    def _before_wait(self) -> None:
        for queue in (self._posted, self._compute.events):
            while queue:
                self._deliver(queue.popleft())
        if self._dirty:
            self.meters.overlap.set(self._compute.is_in_call)
        while self._dirty:
            self._dirty.popitem()[0].flush()

    def _deliver(self, event: Event) -> None:
        client = self.clients.get(event.conn_id)
        if client is None or client.is_abandoned:
            return
        try:
            _DELIVER[type(event)](self, client, event)
        except Exception:  # a bug in one client's delivery must not affect the others
            log.exception("%r: %s", client, type(event).__name__)
            client.drop("internal error")

    def _relay(self, client: Client, event: Queued | Progress | Prompt | Token | End) -> None:
        """Pass on what happens between a request's acceptance and its end."""
        if self.ledger.is_running((event.conn_id, event.request_id)):
            client.send(_TO_WIRE[type(event)](event))

    def _on_accepted(self, client: Client, event: Accepted) -> None:
        if self.ledger.accept((event.conn_id, event.request_id)):
            client.send(wire.Started(event.request_id))
            if client.is_held:
                self._compute.submit(Hold(client.conn_id, True))

    def _on_refused(self, client: Client, event: Refused) -> None:
        key = event.conn_id, event.request_id
        job = self.ledger.pending(key)
        if self.ledger.end(key):
            embed = job.request.embed if job else None
            journal.refused(client, embed.op if embed else "generate", event.request_id, event.error)
            client.send(wire.Error(event.request_id, event.error))
            client.pump()

    def _on_final(self, client: Client, event: Final) -> None:
        if event.embedding is not None:
            self._reply_vectors(client, event)
        elif self.ledger.end((event.conn_id, event.request_id)):
            journal.ended(client, event)
            client.send(wire.Eos(*event[1:-1]))  # the same fields, without the connection and the vectors
            client.pump()

    def _reply_vectors(self, client: Client, event: Final) -> None:
        """Have the intake encode the vectors, whose JSON may be megabytes; the request ends with that reply."""
        embedding, key = event.embedding, (event.conn_id, event.request_id)

        def finish(outcome: bytes | UmaError) -> None:
            if client.is_abandoned or not self.ledger.end(key):
                return
            journal.ended(client, event)
            if isinstance(outcome, UmaError):
                client.send(wire.Error(event.request_id, outcome))
            else:
                client.expect(len(outcome))
                client.send(wire.Reply(event.request_id, embedding.wanted.op, outcome))
            client.pump()

        def work() -> bytes:
            return reply_json(embedding, event.usage, event.timing)

        answer = lambda outcome: self.loop.call_soon(lambda: finish(outcome))  # noqa: E731
        self.intake.put(
            Encoding(event.conn_id, self.now_ns(), sum(rows.nbytes for rows in embedding.vectors), work, answer)
        )

    def _on_stale(self, client: Client, event: Stale) -> None:
        job = self.ledger.pending((event.conn_id, event.request_id))
        if job is not None:
            self.intake.put(job)


def _own_id(message: Message) -> str:
    """Return the id to answer a message under: the id of a cancel names another request."""
    return "" if message.op.name == "cancel" else message.id


# `event[1:]`: the same fields, without the connection
_TO_WIRE: dict[type, Callable[[Any], wire.Event]] = {
    Queued: lambda event: wire.Queued(event.request_id, event.position, event.wait_ns // 1_000_000),
    Progress: lambda event: wire.Progress(
        event.request_id, event.n_prompt, event.n_cached, event.n_read, round(event.read_ns / 1e6, 3)
    ),
    Prompt: lambda event: wire.Prompt(*event[1:]),
    Token: lambda event: wire.Token(*event[1:]),
    End: lambda event: wire.End(*event[1:]),
}
_DELIVER: dict[type, Callable[..., None]] = {
    **dict.fromkeys(_TO_WIRE, IoApp._relay),
    Accepted: IoApp._on_accepted,
    Refused: IoApp._on_refused,
    Final: IoApp._on_final,
    Stale: IoApp._on_stale,
}
