"""The two protocols as byte parsers: HTTP with server-sent events, and our frames. No sockets here.

Rules: a parser takes the bytes that have arrived, once per read, and returns a list of `Tick`. Its work per token is
one JSON object, the same for both protocols.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple, Protocol

from perf.load import BURDENS, Ask


class Tick(NamedTuple):
    """One event of a request."""

    name: str  # of the ask; "" if the protocol serves one request per connection
    kind: str  # "token", "done" or "error"
    detail: str = ""
    n_tokens: int = -1  # with "done": by the server's count


class Parser(Protocol):
    """Turns received bytes into ticks."""

    def feed(self, data: bytes) -> list[Tick]: ...
    def feed_eof(self) -> list[Tick]: ...


class FrameParser:
    """uint32_le length | JSON object, any number of requests on one connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Tick]:
        buffer = self._buffer
        buffer += data
        out: list[Tick] = []
        at = 0
        while len(buffer) - at >= 4:
            (size,) = struct.unpack_from("<I", buffer, at)
            if len(buffer) - at - 4 < size:
                break
            tick = self._tick(json.loads(bytes(buffer[at + 4 : at + 4 + size])))
            if tick is not None:
                out.append(tick)
            at += 4 + size
        del buffer[:at]
        return out

    def feed_eof(self) -> list[Tick]:
        return []

    @staticmethod
    def _tick(event: dict[str, Any]) -> Tick | None:
        kind, name = event.get("event"), str(event.get("id") or "")
        if kind == "token":
            return Tick(name, "token")
        if kind == "eos":
            reason = event.get("reason", "")
            if reason in ("length", "stop"):
                return Tick(name, "done", reason, int(event.get("usage", {}).get("completion_tokens", -1)))
            return Tick(name, "error", f"{reason} {event.get('error', '')}".strip())
        if kind == "error":
            return Tick(name, "error", f"{event.get('code')} {event.get('message', '')}")
        return Tick(name, "done") if kind == "reply" else None


# An answer of thousands of rows, so that no stream ends early.
SCHEMA = {
    "type": "array",
    "minItems": 2_000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
            "note": {"type": ["string", "null"]},
        },
        "required": ["name", "age", "tags", "note"],
        "additionalProperties": False,
    },
}


def frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return struct.pack("<I", len(body)) + body


def frame_request(ask: Ask, text: str) -> bytes:
    if ask.burden:
        return frame({"id": ask.name, **BURDENS[ask.burden]})
    message: dict[str, Any] = {
        "id": ask.name,
        "prompt": text,
        "max_tokens": ask.n_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": bool(ask.parts),
    }
    if ask.priority is not None:
        message["priority"] = ask.priority
    if ask.has_schema:
        message["constraint"] = {"json_schema": SCHEMA}
    return frame(message)


class SseParser:
    """One HTTP/1.1 response: status, headers, then a chunked (or plain) body of `data: {...}` events."""

    def __init__(self) -> None:
        self._raw = bytearray()  # not yet decoded from the transfer coding
        self._body = bytearray()  # not yet split into events
        self._status = 0
        self._is_chunked = False
        self._n_chunk_left = -1  # bytes left of the current chunk; -1: a size line comes next
        self._is_over = False

    def feed(self, data: bytes) -> list[Tick]:
        self._raw += data
        if not self._status and not self._read_head():
            return []
        if self._is_chunked:
            self._decode_chunks()
        else:
            self._body += self._raw
            self._raw.clear()
        return self._events()

    def feed_eof(self) -> list[Tick]:
        if self._is_over:
            return []
        return [Tick("", "error", f"HTTP {self._status}: {bytes(self._body[:200]).decode(errors='replace')}")]

    def _read_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._raw[:end]).decode("latin-1").lower()
        del self._raw[: end + 4]
        self._status = int(head.split(" ", 2)[1])
        self._is_chunked = "transfer-encoding: chunked" in head
        return True

    def _decode_chunks(self) -> None:
        raw = self._raw
        while raw:
            if self._n_chunk_left < 0:
                end = raw.find(b"\r\n")
                if end < 0:
                    return
                self._n_chunk_left = int(bytes(raw[:end]).split(b";")[0], 16) + 2  # with its own line end
                del raw[: end + 2]
            take = min(self._n_chunk_left, len(raw))
            self._body += raw[: min(take, max(0, self._n_chunk_left - 2))]
            del raw[:take]
            self._n_chunk_left -= take
            if self._n_chunk_left == 0:
                self._n_chunk_left = -1

    def _events(self) -> list[Tick]:
        out: list[Tick] = []
        while not self._is_over:
            end = self._body.find(b"\n\n")
            if end < 0:
                break
            event = bytes(self._body[:end])
            del self._body[: end + 2]
            if event.startswith(b"data: "):
                out += self._ticks(event[6:])
        return out

    def _ticks(self, payload: bytes) -> list[Tick]:
        if payload.strip() == b"[DONE]":
            self._is_over = True
            return [Tick("", "done")]
        event = json.loads(payload)
        if "error" in event:
            self._is_over = True
            return [Tick("", "error", str(event["error"]))]
        if "choices" in event:  # OpenAI's form
            choice = event["choices"][0] if event["choices"] else {}
            return [Tick("", "token")] if choice.get("text") or choice.get("delta", {}).get("content") else []
        ticks = [Tick("", "token")] if event.get("content") or event.get("tokens") else []
        if event.get("stop"):
            self._is_over = True
            ticks.append(Tick("", "done", str(event.get("stop_type", "")), int(event.get("tokens_predicted", -1))))
        return ticks


def http_request(path: str, message: dict[str, Any], more: str = "") -> bytes:
    """Return a POST request. `more`: additional header lines."""
    body = json.dumps(message, separators=(",", ":")).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Type: application/json\r\nContent-Length: "
        f"{len(body)}\r\n\r\n"
    )
    return head.encode() + body


def completion_request(ask: Ask, text: str) -> bytes:
    """Return a request to llama-server's own endpoint."""
    return http_request("/completion", _completion(ask, text))


def _completion(ask: Ask, text: str) -> dict[str, Any]:
    return {
        "prompt": text,
        "n_predict": ask.n_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": bool(ask.parts),
    }


_BURDEN_PATHS = {"messages": "/v1/chat/completions", "reload": "/uma/reload"}


def gateway_request(ask: Ask, text: str) -> bytes:
    """Return a request to the same endpoint of our gateway, with fields that llama-server does not have."""
    if ask.burden:  # the connection is closed after the answer, whatever it is
        message = BURDENS[ask.burden]
        if ask.burden in ("status", "metrics"):
            path = {"status": "/uma/status", "metrics": "/metrics"}[ask.burden]
            return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        if "tokens" in message:
            message = {"prompt": message["tokens"]}
        return http_request(_BURDEN_PATHS.get(ask.burden, "/completion"), message, "Connection: close\r\n")
    message = _completion(ask, text)
    if ask.priority is not None:
        message["priority"] = ask.priority
    if ask.has_schema:
        message["json_schema"] = SCHEMA
    return http_request("/completion", message)


def chat_request(ask: Ask, text: str) -> bytes:
    """Return a request for a streamed chat, as most programs send it."""
    message = {
        "model": "any",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": ask.n_tokens,
        "temperature": 0,
        "stream": True,
    }
    return http_request("/v1/chat/completions", {**message, "ignore_eos": True, "cache_prompt": bool(ask.parts)})


def openai_request(ask: Ask, text: str) -> bytes:
    """Return a request to the endpoint of llama-cpp-python's example server."""
    return http_request(
        "/v1/completions", {"prompt": text, "max_tokens": ask.n_tokens, "temperature": 0, "stream": True}
    )
