"""One process, one selector: sends a phase's asks when they are due, and records the time of every token on arrival.

Rules: monotonic time at receipt, before any parsing; per token nothing is printed, written or allocated except its
time.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from perf.load import Ask, Phase, text_of
from perf.stats import StreamLog
from perf.wire import FrameParser, Parser, SseParser, Tick, completion_request, frame_request

_READ = 1 << 16
_SEND_BUFFER = 1 << 20  # a prompt of 128k tokens leaves in one call


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address, and its protocol."""

    address: str | tuple[str, int]  # path of a Unix socket, or host and port
    encode: Callable[[Ask, str], bytes]
    parser: Callable[[], Parser]
    is_multiplexed: bool  # one connection carries several requests, told apart by id


def frames_endpoint(path: str) -> Endpoint:
    return Endpoint(path, frame_request, FrameParser, True)


def sse_endpoint(host: str, port: int, encode: Callable[[Ask, str], bytes] = completion_request) -> Endpoint:
    return Endpoint((host, port), encode, SseParser, False)


@dataclass(slots=True)
class _Stream:
    ask: Ask
    t_sent: int
    t_tokens: list[int] = field(default_factory=list)
    t_done: int = 0
    error: str = ""
    n_reported: int = -1

    def log(self) -> StreamLog:
        ask, error = self.ask, self.error
        if not error and self.n_reported >= 0 and self.n_reported != len(self.t_tokens):
            error = f"{len(self.t_tokens)} token events for {self.n_reported} tokens"
        return StreamLog(
            ask.name,
            ask.is_interactive,
            ask.n_prompt,
            len(self.t_tokens) if ask.burden else ask.n_tokens,
            self.t_sent,
            tuple(self.t_tokens),
            self.t_done,
            error,
            self.n_reported,
        )


@dataclass(slots=True)
class _Link:
    sock: socket.socket
    parser: Parser
    live: dict[str, _Stream] = field(default_factory=dict)


class Driver:
    """Runs one phase against one endpoint. Use once."""

    def __init__(self, endpoint: Endpoint, phase: Phase, seed: str) -> None:
        self._endpoint = endpoint
        self._phase = phase
        # made first: the server does not spend this time
        self._payloads = {a.name: endpoint.encode(a, text_of(seed, a, phase.name)) for a in phase.asks}
        self._selector = selectors.DefaultSelector()
        self._links: dict[str, _Link] = {}  # connections of apps
        self._open: list[_Link] = []
        self._streams: dict[str, _Stream] = {}
        self._due: list[tuple[int, int, Ask]] = []
        self._waiting: dict[int, tuple[Ask, set[str]]] = {}
        self.t_start = self.t_end = 0

    def run(self) -> list[StreamLog]:
        """Run the phase. Blocks until every request has ended, or the phase's time is up (the rest then carries an
        error).
        """
        self.t_start = time.monotonic_ns()
        deadline = self.t_start + int(self._phase.timeout_s * 1e9)
        t_least = self.t_start + int(self._phase.lasts_s * 1e9)
        for number, ask in enumerate(self._phase.asks):
            if ask.after:
                self._waiting[number] = (ask, set(ask.after))
            else:
                self._schedule(number, ask, self.t_start)
        try:
            while self._is_busy() or time.monotonic_ns() < t_least:
                now = time.monotonic_ns()
                if now >= deadline:
                    break
                self._send_due(now)
                if not self._is_busy() and now >= t_least:  # sending failed, and nothing else is left
                    break
                until = min(self._due[0][0], deadline) if self._due else (deadline if self._is_busy() else t_least)
                for key, _ in self._selector.select(max(0.0, (until - time.monotonic_ns()) / 1e9)):
                    self._on_readable(key.data)
        finally:
            self.t_end = time.monotonic_ns()
            self._close()
        return [self._log(ask) for ask in self._phase.asks]

    def _is_busy(self) -> bool:
        return bool(self._due or self._waiting or any(s.t_done == 0 for s in self._streams.values()))

    def _schedule(self, number: int, ask: Ask, t0: int) -> None:
        heapq.heappush(self._due, (t0 + int(ask.at_ms * 1e6), number, ask))

    def _send_due(self, now: int) -> None:
        while self._due and self._due[0][0] <= now:
            self._send(heapq.heappop(self._due)[2])

    def _send(self, ask: Ask) -> None:
        stream = self._streams[ask.name] = _Stream(ask, time.monotonic_ns())
        try:
            link = self._link_for(ask)
            link.live[ask.name if self._endpoint.is_multiplexed else ""] = stream
            link.sock.setblocking(True)
            link.sock.sendall(self._payloads[ask.name])
            link.sock.setblocking(False)
        except OSError as error:
            self._end(stream, f"cannot send: {error}")

    def _link_for(self, ask: Ask) -> _Link:
        if ask.app and self._endpoint.is_multiplexed and ask.app in self._links:
            return self._links[ask.app]
        address = self._endpoint.address
        sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if not isinstance(address, str):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect(address)
        link = _Link(sock, self._endpoint.parser())
        self._selector.register(sock, selectors.EVENT_READ, link)
        self._open.append(link)
        if ask.app:
            self._links[ask.app] = link
        return link

    def _on_readable(self, link: _Link) -> None:
        now = time.monotonic_ns()
        try:
            data = link.sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        ticks = link.parser.feed(data) if data else link.parser.feed_eof()
        for tick in ticks:
            self._on_tick(link, tick, now)
        if not data:
            for stream in list(link.live.values()):
                self._end(stream, "connection closed")
        if not data or (not link.live and not self._endpoint.is_multiplexed):
            self._drop(link)

    def _on_tick(self, link: _Link, tick: Tick, now: int) -> None:
        stream = link.live.get(tick.name)
        if stream is None:
            if tick.kind == "error" and not tick.name:  # of the connection, not of a single request
                for each in list(link.live.values()):
                    self._refuse(each, tick.detail)
            return
        if tick.kind == "token":
            stream.t_tokens.append(now)
            if len(stream.t_tokens) == 1:
                self._pass_gate(stream.ask.name, "first", now)
            return
        del link.live[tick.name]
        stream.n_reported = tick.n_tokens
        if tick.kind == "error":
            self._refuse(stream, tick.detail)
        else:
            self._end(stream, "")

    def _refuse(self, stream: _Stream, error: str) -> None:
        self._end(stream, "" if stream.ask.burden else error)  # a burden has done its work when it is refused

    def _end(self, stream: _Stream, error: str) -> None:
        if stream.t_done:
            return
        stream.t_done = time.monotonic_ns()
        stream.error = error
        for gate in ("first", "done"):  # a failed request must not keep others waiting for ever
            self._pass_gate(stream.ask.name, gate, stream.t_done)

    def _pass_gate(self, name: str, gate: str, now: int) -> None:
        for number, (ask, left) in list(self._waiting.items()):
            if ask.gate != gate or name not in left:
                continue
            left.discard(name)
            if not left:
                del self._waiting[number]
                self._schedule(number, ask, now)

    def _log(self, ask: Ask) -> StreamLog:
        stream = self._streams.get(ask.name)
        if stream is None:
            return _Stream(ask, self.t_start, error="never sent: the phase's time was up").log()
        if not stream.t_done:
            stream.error = "not finished when the phase's time was up"
        return stream.log()

    def _drop(self, link: _Link) -> None:
        """Close an idle connection, because an HTTP server keeps a thread for each one."""
        self._selector.unregister(link.sock)
        link.sock.close()
        self._open.remove(link)
        self._links = {app: other for app, other in self._links.items() if other is not link}

    def _close(self) -> None:
        self._selector.close()
        for link in self._open:
            link.sock.close()
