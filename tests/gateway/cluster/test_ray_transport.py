"""A gateway's questions to its nodes. The nodes follow the test's script; test_ray.py tests Ray itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.late import needs_ray
from uma_gateway.cluster import replicas
from uma_gateway.errors import GatewayError

if TYPE_CHECKING:
    from tests.gateway.cluster.nodes import Nodes

pytestmark = needs_ray


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    from tests.gateway.cluster.nodes import Nodes

    monkeypatch.setattr(replicas, "running", lambda deployment: {"large": "1", "small": "2"})
    return Nodes()


def test_a_model_that_one_node_refuses_is_loaded_on_another(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> list[str]:
        for _ in range(3):
            found = await nodes.units()
        return [unit.node for unit in found]

    assert asyncio.run(work()) == ["small"] and nodes.asked == ["large", "small"]
    assert caplog.text.count("m cannot be loaded on large: no such file") == 1


def test_a_model_that_is_being_loaded_is_not_loaded_elsewhere_for_a_request(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that comes while the cluster starts finds a node with more free memory than the one that loads."""
    ask = nodes._ask
    begun, may_end = asyncio.Event(), asyncio.Event()
    nodes.refusing.clear()

    async def slow(method: str, replica: str, *args: Any, timeout_s: float = 60.0) -> dict[str, Any]:
        if method == "load":
            begun.set()
            await may_end.wait()
        reply = await ask(method, replica, *args, timeout_s=timeout_s)
        return {**reply, "free_mb": 0} if replica == "large" and begun.is_set() else reply

    async def work() -> None:
        looking = asyncio.ensure_future(nodes.units())
        await begun.wait()
        loading = asyncio.ensure_future(nodes.load("m"))
        await asyncio.sleep(0.01)
        may_end.set()
        await loading
        assert [unit.node for unit in await looking] == ["large"]

    monkeypatch.setattr(nodes, "_ask", slow)
    asyncio.run(work())
    assert nodes.asked == ["large"]


def test_a_report_from_before_a_load_does_not_have_the_model_loaded_twice(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = nodes._ask
    is_loaded, has_told = asyncio.Event(), asyncio.Event()
    nodes.refusing.clear()

    async def late(method: str, replica: str, *args: Any, timeout_s: float = 60.0) -> dict[str, Any]:
        reply = await ask(method, replica, *args, timeout_s=timeout_s)
        if method == "about" and asyncio.current_task() in of_request:
            has_told.set()
            await is_loaded.wait()
            return {**reply, "free_mb": 0} if replica == "large" else reply
        return reply

    of_request: set[Any] = set()

    async def work() -> None:
        monkeypatch.setattr(asyncio, "gather", gather)
        loading = asyncio.ensure_future(nodes.load("m"))
        of_request.add(loading)
        await has_told.wait()
        await nodes.units()
        is_loaded.set()
        await loading

    async def gather(*asks: Any, return_exceptions: bool) -> list[Any]:
        return [await each for each in asks]  # in the task of the caller

    monkeypatch.setattr(nodes, "_ask", late)
    asyncio.run(work())
    assert nodes.asked == ["large"]


def test_nodes_that_refuse_are_asked_again_after_a_while(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.refusing.add("small")

    async def work() -> None:
        for _ in range(5):
            await nodes.units()
        assert nodes.asked == ["large", "small"]
        with pytest.raises(GatewayError, match="no such file"):
            await nodes.load("m")

    asyncio.run(work())
    nodes.asked.clear()
    monkeypatch.setattr("uma_gateway.cluster.ray_transport.REFUSED_S", 0.0)
    nodes._refusals.clear()

    async def later() -> None:
        for _ in range(2):
            await nodes.units()

    asyncio.run(later())
    assert nodes.asked == ["large", "large"]


def test_a_node_that_leaves_while_it_refuses_a_model_keeps_nobody_from_another(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both events come at the same time: its refusal arrives when the node is no longer known."""
    ask = nodes._ask

    async def leaving(method: str, replica: str, *args: Any, timeout_s: float = 60.0) -> dict[str, Any]:
        if method == "load" and replica == "large":
            monkeypatch.setattr(replicas, "running", lambda deployment: {"small": "2"})
            await nodes._look()
        return await ask(method, replica, *args, timeout_s=timeout_s)

    monkeypatch.setattr(nodes, "_ask", leaving)
    asyncio.run(nodes.load("m"))
    assert nodes.asked == ["large", "small"]
