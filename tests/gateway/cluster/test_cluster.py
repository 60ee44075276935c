"""The daemons of a cluster, and the requests that wait for one. test_link.py follows requests through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.daemon.support import WAIT_S
from tests.gateway.cluster.sockets import Sockets
from tests.gateway.cluster.test_router import digest
from uma_gateway.cluster.cluster import Cluster, attempt_id, group_of
from uma_gateway.cluster.router import Ask, RouterSettings
from uma_gateway.cluster.transport import Unit
from uma_gateway.errors import GatewayError, Kind


def asked(name: str) -> Ask:
    return Ask(name, "a", 0, group_of("m", "f"), (), 1)


def heard(cluster: Cluster, name: str, fingerprint: str = "f", **fields: Any) -> None:
    """Let a daemon join and tell its digest."""
    cluster.units[name] = Unit(name, "node", "m")
    cluster._heard(cluster.units[name], {**digest(**fields), "fingerprint": fingerprint, "generation": 1}, 0)


def on_cluster(work: Callable[[Cluster], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run() -> None:
        cluster = Cluster(Sockets({}), bytes(32), RouterSettings(**settings))
        cluster._main = [asyncio.ensure_future(asyncio.sleep(WAIT_S))]  # the test tells what the daemons say
        try:
            await work(cluster)
        finally:
            await cluster.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_a_request_that_waits_goes_when_another_ends() -> None:
    async def work(cluster: Cluster) -> None:
        heard(cluster, "n", n_seq_max=1)
        assert (await cluster.submit(asked("first"))).node == "n"
        second = asyncio.ensure_future(cluster.submit(asked("second")))
        await asyncio.sleep(0)
        assert not second.done() and cluster.position(asked("second")) == 0
        cluster.ended("first", True)
        assert (await second).node == "n" and cluster.counts["routed"] == 2
        assert cluster.position(asked("second")) is None

    on_cluster(work, slack=0.0)


def test_a_request_that_is_withdrawn_keeps_nobody_waiting() -> None:
    async def work(cluster: Cluster) -> None:
        heard(cluster, "n", n_seq_max=1)
        await cluster.submit(asked("first"))
        second = asyncio.ensure_future(cluster.submit(asked("second")))
        third = asyncio.ensure_future(cluster.submit(asked("third")))
        await asyncio.sleep(0)
        cluster.ended("first", True)  # the second has its daemon, and does not know it yet
        second.cancel()
        assert (await third).node == "n"

    on_cluster(work, slack=0.0)


def test_a_request_for_a_model_that_nobody_has_is_refused() -> None:
    async def work(cluster: Cluster) -> None:
        with pytest.raises(GatewayError) as caught:
            await cluster.submit(asked("r"))
        assert caught.value.kind is Kind.UNAVAILABLE and cluster.counts["refused"] == 1

    on_cluster(work)


def test_a_digest_that_cannot_be_read_adds_no_daemon(caplog: pytest.LogCaptureFixture) -> None:
    async def work(cluster: Cluster) -> None:
        heard(cluster, "n", wait_ms=None)
        assert cluster.of_model("m") == [] and "cannot be read" in caplog.text
        heard(cluster, "n")
        assert [unit.name for unit in cluster.of_model("m")] == ["n"]

    on_cluster(work)


def test_the_model_is_what_most_of_its_daemons_have() -> None:
    async def work(cluster: Cluster) -> None:
        assert cluster.fingerprint("m") == ""
        for name, fingerprint in (("a", "old"), ("b", "new"), ("c", "new")):
            heard(cluster, name, fingerprint)
        assert cluster.fingerprint("m") == "new"
        for name in ("b", "c"):
            cluster._leave(name)
        assert cluster.fingerprint("m") == "old" and [unit.name for unit in cluster.of_model("m")] == ["a"]

    on_cluster(work)


def test_readers_of_a_lost_daemon_are_told_and_others_are_not() -> None:
    async def work(cluster: Cluster) -> None:
        told: list[str] = []
        for reader, unit in (("1", "a"), ("2", "a"), ("3", "b")):
            cluster.reading(unit, reader, lambda reader=reader: told.append(reader))
        cluster.left("a", "2")
        cluster.left("a", "none")
        cluster._lose_readers("a")
        cluster._lose_readers("gone")
        assert told == ["1"]

    on_cluster(work)


def test_each_attempt_has_an_id_of_its_own() -> None:
    first, second = attempt_id("r"), attempt_id("r")
    assert first != second and first.startswith("r~")
