"""One connected socket: reading, writing with two caps, and every way in which a connection can end.

- Above the soft cap of unsent bytes the client is held: its sequences pause and nothing more is read from it.
  Below half of the cap it resumes. Above the hard cap, or without progress for the write timeout, it is dropped.
- If the peer shut down only its writing side (`printf … | nc -N -U`), answers in flight are still delivered.
  If it closed the connection, all its requests are cancelled.
- An error that closes the connection is written first, and what the peer still sends is read and discarded for a
  short time: closing with unread bytes would make the peer's write fail before it reads the error.

Rules: knows no operations; reports upward through `Owner`.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from typing import Protocol

from uma_core.config.options import IpcOptions, ns
from uma_core.errors import ErrorCode, UmaError
from uma_core.peer import has_hung_up
from uma_core.protocol.connection import Connection, Rejected, Signal
from uma_core.protocol.events import Eos, Error, Event
from uma_core.protocol.lines import Mode
from uma_core.protocol.messages import Large, Message, Unfit
from uma_core.server.io.loop import READ, WRITE, Loop, Timer
from uma_core.server.io.meters import IoMeters
from uma_core.types import Peer

log = logging.getLogger(__name__)

READ_BYTES = 1 << 16
# limits for one client, whichever comes first, so that others get their turn
MESSAGES_PER_TURN = 32
TURN_NS = 1_000_000
SILENCE_NS = 50_000_000  # silence after which fewer than four bytes cannot be a frame header any more
HANG_UP_CHECK_NS = 250_000_000  # how often to look for a hang-up while nothing is read from a client
LINGER_NS = 1_000_000_000  # how long to discard what the peer still sends after an error
RETRY_NS = 10_000_000  # after the kernel ran out of memory for a write; it keeps reporting the socket as writable then
NO_MEMORY = (errno.ENOBUFS, errno.ENOMEM)
REFUSAL_NS = 5_000_000_000  # how long a refused client may take to show whether it speaks frames or lines


class Owner(Protocol):
    """What a client needs from the I/O app."""

    loop: Loop
    meters: IoMeters

    def ipc(self) -> IpcOptions: ...

    def on_message(self, client: Client, message: Message) -> None: ...

    def on_large(self, client: Client, large: Large) -> None:
        """Have a large request decoded; call `resume` with the result."""

    def on_dirty(self, client: Client) -> None:
        """The client has bytes to write: call `flush` before the loop waits."""

    def on_hold(self, client: Client, is_held: bool) -> None: ...

    def on_abandon(self, client: Client) -> None:
        """The client will be sent nothing more: cancel all its requests. Called once, before `on_gone`."""

    def on_gone(self, client: Client) -> None:
        """The socket is closed. Called once."""


class Client:
    """See the module docstring."""

    def __init__(
        self,
        owner: Owner,
        sock: socket.socket,
        conn_id: int,
        peer: Peer,
        connection: Connection,
        refusal: UmaError | None = None,
        is_reserve: bool = False,
    ) -> None:
        self.conn_id = conn_id
        self.peer = peer
        self.connection = connection
        self.refusal = refusal  # the answer to its first request ...
        self.is_reserve = is_reserve  # ... unless that is an operation: this is an administrator's place above the cap
        self.is_open = True
        self.is_held = False
        self.is_abandoned = False  # it gets no more events
        self._owner = owner
        self._sock = sock
        self._tx = bytearray()
        self._interest = 0
        self._is_pumping = False
        self._wants_pump = False  # pumping stopped halfway
        self._is_pump_due = False  # scheduled for the next turn of the loop
        self._is_lingering = False
        self._is_blocked = False  # the socket took less than there was to write
        self._n_expected = 0  # unsent bytes of replies whose size the reader asked for
        self._has_read_eof = False
        self._is_at_end = False  # of the peer's input
        self._n_counted = 0  # unsent bytes that the gauge includes
        self._t_active_ns = self._t_progress_ns = owner.loop.clock.now_ns()
        self._t_begun_ns = 0  # when the incomplete message began
        self._timers: dict[str, Timer] = {}
        self._update_interest()
        if refusal is None or is_reserve:
            self._arm("idle", self._idle_limit_ns(), self._check_idle)
        else:
            self._arm("idle", REFUSAL_NS, lambda: self.close_with(refusal))

    def __repr__(self) -> str:
        return f"conn {self.conn_id} (uid {self.peer.uid}, pid {self.peer.pid})"

    @property
    def n_unsent(self) -> int:
        return len(self._tx)

    # reading

    def on_ready(self, events: int) -> None:
        if events & READ:
            self._read()
        if events & WRITE and self.is_open:
            self.flush()

    def _read(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if error.errno in NO_MEMORY:
                return  # the selector reports the same bytes again
            self.drop(f"read failed: {error.strerror}")
            return
        if not data:
            self._on_eof()
        elif not self._is_lingering:
            self._owner.meters.rx_bytes.add(len(data))
            if not self.connection.n_buffered:
                self._t_begun_ns = self._owner.loop.clock.now_ns()
            self.connection.receive_data(data)
            self.pump()

    def _on_eof(self) -> None:
        if self._is_lingering or has_hung_up(self._sock):
            self.drop("hung up")
            return
        self._has_read_eof = True
        self.connection.receive_eof()
        self.pump()
        self._end_if_done()

    def pump(self) -> None:
        """Hand complete messages to the owner. Also called after each final event, which a line may be waiting for."""
        if self._is_pumping or self._is_lingering:
            return
        self._is_pumping = True
        n_left, t_end_ns = MESSAGES_PER_TURN, self._owner.loop.clock.now_ns() + TURN_NS
        try:
            while self.is_open and not self._is_flooded():
                event = self.connection.next_event()
                if isinstance(event, Signal):
                    self._is_at_end = event is Signal.END
                    break
                self._t_active_ns = self._t_begun_ns = self._owner.loop.clock.now_ns()
                if isinstance(event, Large):
                    self._owner.on_large(self, event)
                else:
                    self._take(event)
                n_left -= 1
                if not n_left or self._owner.loop.clock.now_ns() > t_end_ns:
                    n_left = 0
                    break
        finally:
            self._is_pumping = False
        if self.is_open:
            self._update_interest()
            self._wants_pump = self._is_flooded()
            if not n_left and not self._is_pump_due:
                self._is_pump_due = True
                self._owner.loop.call_soon(self._pump_again)
            if self.connection.is_ambiguous:
                self._arm("disambiguate", SILENCE_NS, self._disambiguate)

    def _pump_again(self) -> None:
        self._is_pump_due = False
        self.pump()
        self._end_if_done()  # it may have found only the end of the input

    def _take(self, event: Message | Rejected) -> None:
        if isinstance(event, Rejected):
            log.debug("%r: %s", self, event.error)
            self.send(event)
        else:
            self._owner.on_message(self, event)

    def resume(self, outcome: Message | Unfit) -> None:
        """Continue with a decoded large request."""
        if self.is_open and not self._is_lingering:
            self._take(self.connection.resume(outcome))
            self.pump()
            self._end_if_done()

    def _is_flooded(self) -> bool:
        """Whether unsent replies have piled up, because a client sends requests faster than it reads the replies."""
        return len(self._tx) > self._owner.ipc().tx_soft_bytes

    def _disambiguate(self) -> None:
        self.connection.disambiguate()
        self.pump()

    # writing

    def send(self, event: Event | Rejected) -> None:
        """Encode and queue an event; `flush` writes it. Raises: what Connection.send raises."""
        if not self.is_open or self._is_lingering:
            return
        data = self.connection.send(event)
        self._tx += data
        if isinstance(event, Eos):
            self.expect(len(data))  # it has a whole answer, unless that was streamed
        self._owner.on_dirty(self)
        if isinstance(event, Error | Rejected | Eos) and event.error is not None:
            self._owner.meters.count_error(event.error.error)
        if self.connection.is_closing:
            self._abandon()

    def expect(self, n_bytes: int) -> None:
        """Allow a reply of this size to wait for its reader, who asked for it, however large it is."""
        self._n_expected += n_bytes

    def flush(self) -> None:
        """Write as much as the socket takes; then hold, resume, drop or end the client, depending on what is left."""
        if not self.is_open:
            return
        if self._tx and not self._write():
            return
        options = self._owner.ipc()
        n_unsent = len(self._tx)
        self._count_unsent(n_unsent)
        if not n_unsent:
            self._n_expected = 0
        if n_unsent > options.tx_hard_bytes + self._n_expected:
            self._drop_slow(f"{n_unsent} bytes are unsent")
            return
        self._hold(n_unsent > (options.tx_soft_bytes // 2 if self.is_held else options.tx_soft_bytes))
        if n_unsent and not self._is_blocked:
            self._t_progress_ns = self._owner.loop.clock.now_ns()
        self._is_blocked = n_unsent > 0
        if n_unsent:
            self._arm("stall", ns(options.write_timeout_ms), self._check_stall)
        self._update_interest()
        if self._wants_pump and not self.is_held:
            self.pump()
        self._end_if_done()

    def _count_unsent(self, n_unsent: int) -> None:
        gauge = self._owner.meters.tx_buffered
        gauge.set(gauge.value + n_unsent - self._n_counted)
        self._n_counted = n_unsent

    def _write(self) -> bool:
        try:
            n_sent = self._sock.send(self._tx)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as error:
            if error.errno in NO_MEMORY:
                self._arm("retry", RETRY_NS, self.flush)
                return True
            self.drop(f"write failed: {error.strerror}")
            return False
        del self._tx[:n_sent]
        self._t_active_ns = self._t_progress_ns = self._owner.loop.clock.now_ns()
        self._owner.meters.tx_bytes.add(n_sent)
        return True

    def _hold(self, is_held: bool) -> None:
        if is_held != self.is_held:
            self.is_held = is_held
            log.debug("%r %s", self, "is held: it reads too slowly" if is_held else "resumes")
            self._owner.on_hold(self, is_held)

    # interest and timers

    def _update_interest(self) -> None:
        connection = self.connection
        cap_bytes = (
            connection.limits.line_cap_bytes if connection.mode is Mode.LINES else connection.limits.frame_cap_bytes
        )
        is_full = connection.n_buffered > cap_bytes + READ_BYTES  # only while lines wait for their turn
        wants_read = self._is_lingering or not (self._has_read_eof or self.is_held or is_full)
        wants_write = bool(self._tx) and "retry" not in self._timers
        interest = (READ if wants_read else 0) | (WRITE if wants_write else 0)
        if interest != self._interest:
            self._interest = interest
            self._owner.loop.watch(self._sock, interest, self.on_ready)
        if not wants_read:
            self._arm("hang-up", HANG_UP_CHECK_NS, self._check_hang_up)

    def _arm(self, name: str, delay_ns: int, function: Callable[[], None]) -> None:
        """Run `function` after the delay, unless that timer is already set. 0: never."""
        if delay_ns > 0 and name not in self._timers:
            self._timers[name] = self._owner.loop.call_later(delay_ns, lambda: self._fire(name, function))

    def _fire(self, name: str, function: Callable[[], None]) -> None:
        del self._timers[name]
        function()

    def restart_idle(self, limit_ns: int) -> None:
        """Apply a new idle timeout, counted from the last activity."""
        if self.refusal is not None:
            return
        timer = self._timers.pop("idle", None)
        if timer is not None:
            timer.cancel()
        if limit_ns:
            self._check_idle()

    def _idle_limit_ns(self) -> int:
        return REFUSAL_NS if self.is_reserve else ns(self._owner.ipc().idle_timeout_ms)

    def _check_idle(self) -> None:
        """Only a complete message counts as activity, but a message that has begun gets as much time to complete."""
        limit_ns = self._idle_limit_ns()
        t_last_ns = max(self._t_active_ns, self._t_begun_ns) if self.connection.n_buffered else self._t_active_ns
        quiet_ns = self._owner.loop.clock.now_ns() - t_last_ns
        if self.connection.in_flight or self.connection.is_waiting or self._tx:
            self._arm("idle", limit_ns, self._check_idle)
        elif quiet_ns < limit_ns:
            self._arm("idle", limit_ns - quiet_ns, self._check_idle)
        elif limit_ns:
            self.close_with(UmaError(ErrorCode.IDLE_TIMEOUT, f"no request for {limit_ns / 1e9:g} s"))

    def _check_stall(self) -> None:
        limit_ns = ns(self._owner.ipc().write_timeout_ms)
        quiet_ns = self._owner.loop.clock.now_ns() - self._t_progress_ns
        if not self._tx or not limit_ns:
            return
        if quiet_ns >= limit_ns:
            self._drop_slow(f"the reader took no byte for {limit_ns / 1e9:g} s")
        else:
            self._arm("stall", limit_ns - quiet_ns, self._check_stall)

    def _check_hang_up(self) -> None:
        if has_hung_up(self._sock):
            self.drop("hung up")
        elif not self._interest & READ:
            self._arm("hang-up", HANG_UP_CHECK_NS, self._check_hang_up)

    # the end

    def close_with(self, error: UmaError) -> None:
        """Tell the peer why, then close."""
        self.connection.is_closing = True
        self.send(Error("", error))

    def close_when_written(self) -> None:
        """Close once everything queued so far is written."""
        self.connection.is_closing = True
        self._abandon()
        self._owner.on_dirty(self)

    def _abandon(self) -> None:
        if not self.is_abandoned:
            self.is_abandoned = True
            self._owner.on_abandon(self)

    def _end_if_done(self) -> None:
        connection = self.connection
        if self._tx or not self.is_open:
            return
        if connection.is_closing:
            self._linger()
        elif self._has_read_eof and not connection.in_flight and self._is_at_end:
            self.drop("done")

    def _linger(self) -> None:
        if self._is_lingering:
            return
        self._is_lingering = True
        if self._has_read_eof:
            self.drop("closed")
            return
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.drop("hung up")
            return
        self._update_interest()
        self._arm("linger", LINGER_NS, lambda: self.drop("closed"))

    def _drop_slow(self, why: str) -> None:
        self._owner.meters.slow_clients.add()
        self._owner.meters.count_error(ErrorCode.SLOW_CLIENT)
        log.warning("%r dropped: %s %s: %s", self, ErrorCode.SLOW_CLIENT.code, ErrorCode.SLOW_CLIENT.spec.name, why)
        self.drop("slow")

    def drop(self, why: str) -> None:
        """Close the socket now. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        for timer in self._timers.values():
            timer.cancel()
        self._owner.loop.watch(self._sock, 0, self.on_ready)
        self._sock.close()
        self._tx.clear()
        self._count_unsent(0)
        self._abandon()
        log.debug("%r closed: %s", self, why)
        self._owner.on_gone(self)
