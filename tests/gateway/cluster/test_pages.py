"""The pages of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.support import WAIT_S
from tests.gateway.cluster.sockets import Sockets
from uma_gateway.app import App
from uma_gateway.cluster import pages
from uma_gateway.cluster.cluster import Cluster
from uma_gateway.cluster.facade import ClusterGateway
from uma_gateway.config import Config
from uma_gateway.keys import Keys


def replies(
    method: str, path: str, receive: Callable[[], Any], models: list[str], call: Callable[..., Any] | None = None
) -> list[dict[str, Any]]:
    """Return what a page sends. `call`: in place of the gateway's own questions to daemons."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def work() -> None:
        gateway = ClusterGateway(Config(), Keys("", ""), Cluster(Sockets({}), bytes(32)), models)
        if call is not None:
            gateway.daemon.call = call  # type: ignore[method-assign]
        app = App(lambda: gateway, (pages.FAMILY,))
        app.gateway = gateway
        scope = {"type": "http", "http_version": "1.1", "method": method, "path": path}
        scope |= {"query_string": b"", "root_path": "", "headers": [(b"host", b"localhost")]}
        await app(scope, receive, send)
        await gateway.close()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))
    return sent


def test_the_head_of_the_endless_stream_ends() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(WAIT_S)  # a client that stays
        return {"type": "http.disconnect"}

    sent = replies("HEAD", "/uma/cluster/events", receive, ["m"])
    assert sent[0]["status"] == 200 and dict(sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert not sent[-1]["more_body"] and not any(message.get("body") for message in sent[1:])


def test_a_stream_of_events_ends_so_that_the_gateway_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve does not say that a gateway must stop: it waits until every request has ended, such as an open page's."""

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(WAIT_S)  # a page that stays open
        return {"type": "http.disconnect"}

    monkeypatch.setattr("uma_gateway.cluster.facade.WATCH_S", 0.1)
    sent = replies("GET", "/uma/cluster/events", receive, ["m"])
    assert sent[0]["status"] == 200 and sent[1]["body"].startswith(b"data:") and not sent[-1]["more_body"]


def test_a_trace_of_all_may_name_a_model() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"seconds": 1, "model": "n"}'}

    async def call(operation: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        return {"traceEvents": []}

    sent = replies("POST", "/uma/cluster/trace", receive, ["m", "n"], call)
    assert sent[0]["status"] == 200
