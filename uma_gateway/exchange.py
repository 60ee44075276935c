"""One HTTP request and its answer, as handlers see it: the body within its limits, JSON out, event streams out.

Rules: the only place that handles ASGI messages. When the client disconnects, the handler is cancelled wherever it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs

import orjson

from uma_gateway import large
from uma_gateway.errors import GatewayError, Kind
from uma_gateway.generation import Writer
from uma_gateway.jsons import parse_object
from uma_gateway.within import within

if TYPE_CHECKING:
    from uma_gateway.apis.base import Family
    from uma_gateway.gateway import Gateway
    from uma_gateway.keys import Caller

Result = TypeVar("Result")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")
STREAM_HEADERS: Headers = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx would buffer the stream
]
SSE_TYPE = (b"content-type", b"text/event-stream; charset=utf-8")
NDJSON_TYPE = (b"content-type", b"application/x-ndjson")
CLOSE = (b"connection", b"close")
DISCARDED_BYTES = 1 << 20
DISCARD_S = 2.0
FINAL = frozenset({Kind.NOT_SUPPORTED, Kind.GENERATION_TIMEOUT, Kind.CANCELLED})  # a retry would fail again
BUSY_RETRY_MS = 1000  # used if the error does not say when to retry
SSE_END, LINE_END = b"\n\n", b"\n"  # end of a message of a stream
WRITER = "uma.writer"  # where the server puts a Writer into the scope, if it has one


def messages_of(data: bytes, end: bytes) -> list[bytes]:
    """Split data into the messages of a stream that are written together.

    Each message becomes an HTTP chunk of its own, as with llama-server and Ollama. Node's `http` and aiohttp deliver
    chunk by chunk, and some clients take each chunk for one message.
    """
    parts = data.split(end)
    return [data] if len(parts) <= 2 else [part + end for part in parts[:-1]]


class ClientGone(Exception):
    """The client closed its connection, so nobody is waiting for the answer."""


class Exchange:
    """See the module's docstring. `caller`, `family` and `params` are set before the handler runs."""

    caller: Caller
    family: Family

    def __init__(self, gateway: Gateway, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.gateway = gateway
        self.scope = scope
        self.request_id = request_id
        self.params: dict[str, str] = {}  # parameters in the path
        self.asked: dict[str, Any] = {}  # the body, once it has been parsed as JSON
        self.headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # the first of each name
        self.extra_headers: Headers = []  # sent with the answer, whatever the answer is
        self.status = 0  # status of the answer; 0: no answer has begun
        # if the answer's daemon is lost, the client wants another daemon to continue (docs/CLUSTER.md)
        self.is_resumable = False
        self.facts: dict[str, Any] = {}  # for the log line
        self.t_start = time.perf_counter()
        self._receive = receive
        self._send = send
        self._is_body_read = False
        self._n_bytes = 0  # bytes of the body read so far
        self.is_silent = True  # nothing of the stream was sent since this was set
        self._end = SSE_END  # end of a message in this answer's stream
        self.writer: Writer | None = scope.get(WRITER)  # writes pieces of a stream from outside a task

    # the request

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    @property
    def query(self) -> dict[str, str]:
        """Return the parameters after the path's `?`, the last of each name. Those without a value are left out."""
        given = parse_qs(self.scope["query_string"].decode("latin-1"))
        return {name: values[-1] for name, values in given.items()}

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1").strip()

    async def body(self) -> bytes:
        """Read the body. Raises: GatewayError (413, 408), ClientGone."""
        limits, most = self.gateway.config.limits, self.gateway.config.max_body_bytes
        declared = self.header(b"content-length")
        if declared.isascii() and declared.isdigit() and int(declared) > most:
            raise self._too_large(most)
        try:
            return await within(limits.body_timeout_s, self._read_body(most))
        except asyncio.TimeoutError:
            raise GatewayError(
                Kind.TIMEOUT, f"the body did not come within {limits.body_timeout_s:g} s", code="body_timeout"
            ) from None

    async def _read_body(self, most: int) -> bytes:
        parts: list[bytes] = []
        n_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            n_bytes += len(part)
            if n_bytes > most:
                raise self._too_large(most)
            parts.append(part)
            if not message.get("more_body"):
                self._is_body_read = True
                return b"".join(parts)

    def _too_large(self, most: int) -> GatewayError:
        return GatewayError(
            Kind.TOO_LARGE, f"the body exceeds {most} bytes", code="request_too_large", extra={"limit": most}
        )

    async def json(self) -> dict[str, Any]:
        """Return the body, which must be a JSON object.

        From here on, `gateway` is the gateway of the model that the body names. Raises: GatewayError, ClientGone.
        """
        coding = self.header(b"content-encoding").lower()
        if coding not in ("", "identity"):
            message = f"bodies of Content-Encoding {coding[:50]} are not read: send it as it is"
            raise GatewayError(Kind.INVALID, message, code="bad_content_encoding")
        data = await self.body()
        self._n_bytes = len(data)
        body = await self.read(parse_object, data, self.gateway.config.limits.max_json_depth)
        self.gateway = self.gateway.serving(body.get("model"))
        self.is_resumable = body.get("resume") is True
        self.asked = body
        return body

    async def read(self, reader: Callable[..., Result], *arguments: Any) -> Result:
        """Apply `reader` to the body or to something in it. A large body is read in a thread, so `reader` may use
        nothing but its arguments.
        """
        return await large.read(self._n_bytes, reader, *arguments)

    def also_reads(self, n_bytes: int) -> None:
        """Count bytes that the request refers to, such as a stored conversation, as if they were in its body."""
        self._n_bytes += n_bytes

    async def in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run work that takes long even for a small body, in a thread."""
        return await large.in_thread(self._n_bytes, work, *arguments)

    async def _discard_body(self) -> bool:
        """Read and drop a body that is not needed, if it is small and arrives soon: closing a connection with unread
        bytes resets it, and the client would never see the reason. False: there is more to read.
        """

        async def discard() -> bool:
            n_bytes = 0
            while n_bytes <= DISCARDED_BYTES:
                message = await self._receive()
                if not message.get("more_body"):
                    return True
                n_bytes += len(message.get("body", b""))
            return False

        declared = self.header(b"content-length")
        if not declared and not self.header(b"transfer-encoding"):
            return True
        if declared.isascii() and declared.isdigit() and int(declared) > DISCARDED_BYTES:
            return False
        try:
            return await within(DISCARD_S, discard())
        except asyncio.TimeoutError:
            return False

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end, or cancel it when the client closes the connection. Call this after the body was read.

        Raises: ClientGone, and whatever `work` raises.
        """
        worker = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait((worker, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not worker.done():
                worker.cancel()
                await asyncio.wait((worker,))
        if worker.cancelled():
            raise ClientGone
        worker.result()

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    # the answer

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.extra_headers]})

    async def write(self, data: bytes) -> None:
        """Send whole messages of a stream. Waits while the client reads slowly."""
        self.is_silent = False
        for message in messages_of(data, self._end):
            await self._send({"type": "http.response.body", "body": message, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def send_bytes(self, status: int, body: bytes, headers: Headers) -> None:
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.finish(body)

    async def send_json(self, value: Any, status: int = 200) -> None:
        await self.send_bytes(status, orjson.dumps(value), [JSON_TYPE])

    async def start_sse(self) -> None:
        self._stream_of(SSE_END)
        await self.start(200, [SSE_TYPE, *STREAM_HEADERS])

    async def start_ndjson(self) -> None:
        self._stream_of(LINE_END)
        await self.start(200, [NDJSON_TYPE, *STREAM_HEADERS])

    def _stream_of(self, end: bytes) -> None:
        self._end = end
        if self.writer is not None:
            self.writer.end = end

    async def send_error(self, error: GatewayError) -> None:
        """Answer with an error in the family's form. Only before anything else was sent."""
        if not self._is_body_read and not await self._discard_body():
            self.extra_headers.append(CLOSE)
        headers = [JSON_TYPE, *error.headers, *retry_headers(error)]
        await self.send_bytes(error.status, orjson.dumps(self.error_object(error)), headers)

    def error_object(self, error: GatewayError) -> Any:
        """Return an error in the family's form."""
        error.request_id = self.request_id
        return self.family.error(error)


def retry_headers(error: GatewayError) -> Headers:
    """Return the headers that say when to retry: in whole seconds, as HTTP defines it, and in milliseconds, which SDKs
    read first. If a retry would fail again, a header says so, because SDKs retry every request that got a status of 500
    or more.
    """
    if error.kind in FINAL:
        return [(b"x-should-retry", b"false")]
    ms = error.retry_after_ms
    if ms is None:
        if error.kind not in (Kind.RATE_LIMIT, Kind.UNAVAILABLE):
            return []
        ms = BUSY_RETRY_MS
    ms = max(1, int(ms))
    return [(b"retry-after", str(-(-ms // 1000)).encode()), (b"retry-after-ms", str(ms).encode())]
