"""One HTTP request and its answer."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from uma_gateway.errors import GatewayError, Kind
from uma_gateway.exchange import LINE_END, SSE_END, Exchange, Receive, Send, messages_of, retry_headers
from uma_gateway.gateway import Gateway
from uma_gateway.large import LARGE_BYTES


def test_a_small_request_about_a_large_conversation_is_read_in_a_thread() -> None:
    """Before, one that continued a kept conversation of 90,000 items held up all streams."""
    exchange = Exchange(cast("Gateway", None), {"headers": []}, cast("Receive", None), cast("Send", None), "r")
    assert asyncio.run(exchange.read(threading.current_thread)) is threading.main_thread()
    exchange.also_reads(LARGE_BYTES)
    assert asyncio.run(exchange.read(threading.current_thread)) is not threading.main_thread()


@pytest.mark.parametrize(
    ("data", "end", "messages"),
    [
        (b"data: a\n\n", SSE_END, [b"data: a\n\n"]),
        (b"data: a\n\ndata: b\n\n", SSE_END, [b"data: a\n\n", b"data: b\n\n"]),
        (b"{}\n{}\n{}\n", LINE_END, [b"{}\n"] * 3),
        (b"\n\n", SSE_END, [b"\n\n"]),
    ],
)
def test_each_message_of_a_stream_is_written_by_itself(data: bytes, end: bytes, messages: list[bytes]) -> None:
    assert messages_of(data, end) == messages


def exchange_of(query: bytes = b"", *headers: tuple[bytes, bytes]) -> Exchange:
    scope = {"headers": list(headers), "query_string": query}
    return Exchange(cast("Gateway", None), scope, cast("Receive", None), cast("Send", None), "r")


def test_the_last_of_a_query_s_values_counts_and_the_first_of_headers() -> None:
    exchange = exchange_of(b"limit=1&limit=2&after=", (b"x-priority", b" a "), (b"x-priority", b"b"))
    assert exchange.query == {"limit": "2"} and exchange.header(b"x-priority") == "a"
    assert exchange.header(b"origin") == ""


@pytest.mark.parametrize(
    ("kind", "retry_after_ms", "headers"),
    [
        (Kind.INVALID, None, {}),
        (Kind.RATE_LIMIT, 1001, {b"retry-after": b"2", b"retry-after-ms": b"1001"}),
        (Kind.RATE_LIMIT, 0, {b"retry-after": b"1", b"retry-after-ms": b"1"}),
        (Kind.UNAVAILABLE, None, {b"retry-after": b"1", b"retry-after-ms": b"1000"}),
        (Kind.GENERATION_TIMEOUT, 500, {b"x-should-retry": b"false"}),
        (Kind.NOT_SUPPORTED, None, {b"x-should-retry": b"false"}),
    ],
)
def test_when_to_come_back_is_told(kind: Kind, retry_after_ms: int | None, headers: dict[bytes, bytes]) -> None:
    assert dict(retry_headers(GatewayError(kind, "why", retry_after_ms=retry_after_ms))) == headers
