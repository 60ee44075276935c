"""uvicorn with the limits that it lacks: time and size of a request's head, clients that read nothing, total number of
connections.

Rules: the only file that depends on uvicorn. One process, one event loop (uvloop if it is installed).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from email.utils import formatdate
from types import FrameType
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from uma_core import descriptors
from uma_core.allocator import tame_allocator
from uma_core.errors import ErrorCode, UmaError
from uma_core.regular import read_regular
from uma_core.threads import start
from uma_gateway.app import App
from uma_gateway.config import Config, LimitOptions
from uma_gateway.exchange import SSE_END, WRITER, messages_of
from uma_gateway.gateway import Gateway
from uma_gateway.keys import Keys

try:
    from uvloop import Loop as BaseLoop
except ModuleNotFoundError:  # not on every system
    from asyncio import SelectorEventLoop as BaseLoop  # type: ignore[assignment]

log = logging.getLogger(__name__)

BACKLOG = 1024
SPARE_FILES = 64
MAX_PEM_BYTES = 1 << 20
# while a thread reads a large request, the event loop waits this long for the interpreter lock (Python's default: 5 ms,
# for each socket that is ready)
SWITCH_INTERVAL_S = 0.0005
LAST_WORDS_S = 2  # time for sending errors to those whose answers took longer than `limits.drain_s`
MOST_PIPELINED = 16  # requests that may wait behind the one being answered before reading stops
# libuv uses its threads only to look up the address to listen on, and aborts the process if it cannot start one. So the
# gateway first starts a thread of its own, whose failure it can report, and asks libuv for one thread instead of four.
UV_THREADS = "UV_THREADPOOL_SIZE"
LIFELINE = "UMA_GATEWAY_LIFELINE"  # number of a socket to the daemon that started this process
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class ChunkWriter:
    """The Writer (generation.py) of a connection: writes chunks as uvicorn's `send` does, without its coroutine.

    A stream has no content-length, so uvicorn sends it in chunks.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.can_write = True
        self.end = SSE_END

    def write(self, data: bytes) -> None:
        chunks = [b"%x\r\n%b\r\n" % (len(message), message) for message in messages_of(data, self.end)]
        self._transport.write(b"".join(chunks))


class Endless(int):
    """A content length that never counts down to 0, for uvicorn: an HTTP/1.0 stream has no chunks and ends with its
    connection.
    """

    def __lt__(self, other: object) -> bool:
        return False

    def __sub__(self, other: object) -> Endless:  # type: ignore[override]
        return self

    def __ne__(self, other: object) -> bool:
        return False


def protocol_class(config: Config) -> type[asyncio.Protocol]:
    """Return the HTTP protocol class with this configuration's limits."""
    limits = config.limits
    max_head_bytes = limits.max_header_kb << 10

    class LimitedProtocol(HttpToolsProtocol):
        """Limits the time and size of a head, and drops a client that reads nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._n_head = 0  # bytes of the head that is being read
            self._is_in_head = True  # or before it
            self._refusal = b""  # answers a request that the parser was told to stop reading
            self._is_in_trailer = False  # after a chunk's size and before its data: after the last size come trailers
            self._data = b""  # data that is being parsed
            self._again = b""  # data to be parsed after `_data`
            self._running: Any = None  # uvicorn's cycle that is being answered; `cycle` is the newest one
            self._head_timer: asyncio.TimerHandle | None = None
            self._write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            if len(self.connections) >= limits.max_connections:
                log.warning("%d connections are open, the most allowed: a new one is closed", len(self.connections))
                transport.abort()
                return
            super().connection_made(transport)
            self._writer = ChunkWriter(transport)
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timers()
            if self.flow is not None:  # None: the connection was one too many
                self._writer.can_write = False
                if self._running is not None:
                    self._running.disconnected = not self._running.response_complete
                    self._running.message_event.set()
                super().connection_lost(exc)

        def _start_asgi_task(self, cycle: Any, app: Any) -> None:
            self._running = cycle
            super()._start_asgi_task(cycle, app)

        def _await_head(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(limits.header_timeout_s, self._on_slow_head)

        def _stop_timers(self) -> None:
            for timer in (self._head_timer, self._write_timer):
                if timer is not None:
                    timer.cancel()
            self._head_timer = self._write_timer = None

        def _on_slow_head(self) -> None:
            self._head_timer = None
            if not self.transport.is_closing():
                if self._n_head:
                    self.transport.write(TOO_SLOW)
                self.transport.close()

        def data_received(self, data: bytes) -> None:
            if self._is_in_head or self._is_in_trailer:
                self._n_head += len(data)
            while data:
                self._data, self._again = data, b""
                super().data_received(data)
                data = self._again
            if self.transport.is_closing():
                return
            if (self._is_in_head or self._is_in_trailer) and self._n_head > max_head_bytes:
                self.transport.write(TOO_LARGE)
                self.transport.close()
            elif (
                self._is_in_head
                and self.timeout_keep_alive_task is None
                and (self.cycle is None or self.cycle.response_complete)
            ):
                self._await_head()

        def _is_connect(self) -> bool:
            return bool(self.parser.get_method() == b"CONNECT")

        def _wants_upgrade(self) -> bool:
            """Whether the request asks to switch to another protocol, such as HTTP/2."""
            return self.parser.should_upgrade() and not self._is_connect()

        def _unsupported_upgrade_warning(self) -> None:
            """Answer the request in HTTP/1.1. A client that supports HTTP/2 or WebSocket may ask for an upgrade in any
            request, as Java's does in the first one; a server may ignore that. But the parser then skips the body, so
            it gets the request again, without the upgrade.
            """
            if self._is_connect():  # it is answered with an error, and what follows is not HTTP
                self.cycle.keep_alive = False
                return
            error = sys.exc_info()[1]
            assert isinstance(error, httptools.HttpParserUpgrade)
            version = self.parser.get_http_version().encode()
            lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
            for name, value in self.headers:
                if name == b"connection" and b"close" in value.lower():
                    lines.append(b"connection: close")
                elif name not in (b"connection", b"upgrade"):  # an `upgrade` would be found again and again
                    lines.append(b"%b: %b" % (name, value))
            # the old parser reads nothing more
            self.parser = httptools.HttpRequestParser(self)
            self._n_head = 0
            self._again = b"\r\n".join(lines) + b"\r\n\r\n" + self._data[error.args[0] :]

        def send_400_response(self, msg: str) -> None:
            """Answer what cannot be parsed."""
            if not self._refusal:
                super().send_400_response(msg)
                return
            self.transport.write(self._refusal)
            self.transport.close()

        def on_headers_complete(self) -> None:
            if self._wants_upgrade():
                return
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
            if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > max_head_bytes:
                self._refusal = TOO_LARGE  # of a head that arrived at once, perhaps together with its body
                raise ValueError("the head is too large")
            self._is_in_head = False
            self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            super().on_headers_complete()
            if 0 < len(self.pipeline) < MOST_PIPELINED:
                self.flow.resume_reading()  # otherwise a client's disconnect would not be noticed
            if self.cycle is None or self.cycle.scope is not self.scope:
                return
            if self.scope["http_version"] == "1.0":
                self.cycle.chunked_encoding, self.cycle.expected_content_length = False, Endless()
            else:
                cast("dict[str, Any]", self.scope)[WRITER] = self._writer

        def on_header(self, name: bytes, value: bytes) -> None:
            """Ignore trailers: they arrive after the request was read, so they cannot count as its headers."""
            if not self._is_in_trailer:
                super().on_header(name, value)

        def on_chunk_header(self) -> None:
            """Count the bytes that follow: the parser collects everything after the last chunk, without a limit."""
            self._is_in_trailer, self._n_head = True, 0

        def on_body(self, body: bytes) -> None:
            self._is_in_trailer = False
            super().on_body(body)

        def on_message_complete(self) -> None:
            if self._wants_upgrade():
                return
            super().on_message_complete()
            self._is_in_head, self._is_in_trailer, self._n_head = True, False, 0

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self._is_in_head and self._head_timer is None and not self.transport.is_closing():
                # the answer came before its body: the next head follows the body, and it must come within this time
                self._head_timer = self.loop.call_later(limits.body_timeout_s, self._on_slow_head)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._writer.can_write = False
            if self._write_timer is None:
                self._write_timer = self.loop.call_later(limits.write_timeout_s, self._on_slow_reader)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._writer.can_write = True
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def _on_slow_reader(self) -> None:
            self._write_timer = None
            log.info("a client read nothing for %g s: it is dropped", limits.write_timeout_s)
            self.transport.abort()

    return LimitedProtocol


class Server(uvicorn.Server):
    """Logs where it listens, and reads the keys again at SIGHUP or when the daemon is reloaded."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app
        self._told_to_stop = asyncio.Event()

    async def main_loop(self) -> None:
        """Sleep until told to stop. uvicorn's own loop would wake ten times a second, between a stream's tokens."""
        await self._told_to_stop.wait()
        assert self._app.gateway is not None
        self._app.gateway.stopping.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait until the running answers end. Those that have not ended in time end with an error that their clients
        can read; uvicorn would only cancel them.
        """
        gateway = self._app.gateway
        assert gateway is not None
        loop = asyncio.get_running_loop()
        timer = loop.call_later(gateway.config.limits.drain_s, gateway.daemon.end_answers)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        asyncio.get_running_loop().call_soon_threadsafe(self._told_to_stop.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        for server in self.servers:
            for sock in server.sockets:
                host, port = sock.getsockname()[:2]
                scheme = "https" if self.config.is_ssl else "http"
                log.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)
        gateway = self._app.gateway
        assert gateway is not None
        gateway.greet()  # only now: a gateway that cannot listen must log that reason, and nothing about the daemon
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._on_hup)
        gc.collect()
        # objects that exist now are permanent; collecting them repeatedly would pause streams for milliseconds
        gc.freeze()
        lifeline = os.environ.get(LIFELINE, "")
        if lifeline.isdigit():  # a daemon started this process: this process ends with it
            loop.add_reader(int(lifeline), self._on_lifeline, int(lifeline))
            with contextlib.suppress(ConnectionError):  # the daemon has ended; the reader will see that
                os.write(int(lifeline), b"%g" % gateway.config.limits.drain_s)

    def _on_hup(self) -> None:
        assert self._app.gateway is not None
        self._app.gateway.reload_keys()
        if self.config.ssl is not None:
            serve = self._app.gateway.config.serve
            try:
                # try them in another context first: ssl keeps a certificate that does not match its key, and the old
                # pair would be lost
                check_pem(serve.tls_cert, serve.tls_key)
                tried = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                for context in (tried, self.config.ssl):  # without `password` OpenSSL prompts at the terminal
                    context.load_cert_chain(serve.tls_cert, serve.tls_key, password="")
                log.info("the TLS certificate was read again; new connections get it")
            except OSError as error:  # ssl.SSLError is one
                log.error("the TLS certificate stays as it is: %s", error)

    def _on_lifeline(self, lifeline: int) -> None:
        """Handle the lifeline: data means that the daemon was reloaded, end of file that the daemon has ended."""
        with contextlib.suppress(ConnectionError):  # it was killed
            if os.read(lifeline, 4096):
                self._on_hup()
                return
        asyncio.get_running_loop().remove_reader(lifeline)
        self.should_exit = True
        self._told_to_stop.set()


def check_pem(*paths: str) -> None:
    """Check that the files are regular and of a sensible size: OpenSSL would wait for a pipe's writer, and would never
    stop reading an endless file. Raises: OSError.
    """
    for path in paths:
        if len(read_regular(path, MAX_PEM_BYTES)) > MAX_PEM_BYTES:
            raise OSError(errno.EFBIG, "too large for a certificate or a key", path)


def make_room(limits: LimitOptions) -> None:
    """Raise the limit on open files to what these limits may need: each request in flight has a connection to the
    daemon too.
    """
    wanted = limits.max_connections + limits.max_in_flight + SPARE_FILES
    descriptors.make_room(wanted, f"{limits.max_connections} connections")


def serve(config: Config, keys: Keys) -> int:
    """Answer until told to stop. Returns the exit status. Blocks."""
    make_room(config.limits)
    tame_allocator()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    app = App(lambda: Gateway(config, keys, is_asking=False))
    options = uvicorn.Config(
        app,
        host=config.serve.host,
        port=config.serve.port,
        http=protocol_class(config),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # any client could write these headers
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=int(config.limits.keep_alive_s),
        timeout_graceful_shutdown=int(config.limits.drain_s) + LAST_WORDS_S,
        ssl_certfile=config.serve.tls_cert or None,
        ssl_keyfile=config.serve.tls_key or None,
    )
    try:
        if config.serve.tls_cert:
            check_pem(config.serve.tls_cert, config.serve.tls_key)
        options.load()
    except OSError as error:  # ssl.SSLError is one
        if not config.serve.tls_cert:
            raise
        files = f"{config.serve.tls_cert} and {config.serve.tls_key}"
        raise UmaError(
            ErrorCode.CONFIG_INVALID, f"serve.tls_cert: {files} are not a certificate with its key: {error}"
        ) from None
    server = Server(options, app)
    run(server, config.limits.header_timeout_s)
    return 0 if server.started else 1


def run(server: Server, handshake_s: float) -> None:
    """Serve until told to stop. Raises: CONFIG_INVALID if nothing can listen; INSUFFICIENT_MEMORY if no thread can be
    started.

    A connection whose TLS handshake does not end is closed after `handshake_s`: uvicorn would wait a minute.
    """

    class Loop(BaseLoop):  # type: ignore[misc, valid-type]
        async def create_server(self, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("ssl") is not None:
                kwargs["ssl_handshake_timeout"] = handshake_s
            try:
                return await super().create_server(*args, **kwargs)
            except OSError as error:  # uvicorn would log it in its own words, and exit with its own status
                await server.lifespan.shutdown()
                number = error.errno or 0  # below 0: a name lookup failed
                reason = os.strerror(number) if number > 0 else error.strerror  # asyncio's own is a sentence
                message = f"nothing can listen on {kwargs.get('host')}, port {kwargs.get('port')}: {reason}"
                if number in (errno.EADDRINUSE, errno.EACCES):
                    message += "; choose another port (--port, UMA_GATEWAY_PORT)"
                raise UmaError(ErrorCode.CONFIG_INVALID, message) from None

    start(threading.Thread(target=lambda: None, name="lookup")).join()
    os.environ.setdefault(UV_THREADS, "1")
    loop = Loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(server.serve())
    finally:
        with contextlib.suppress(RuntimeError):  # the loop was stopped by force
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        loop.close()
