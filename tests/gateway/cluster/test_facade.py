"""A cluster as the gateway sees it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.daemon.support import WAIT_S
from tests.gateway.cluster.sockets import Sockets
from tests.gateway.cluster.test_router import digest
from uma_core.errors import ErrorCode, UmaError
from uma_gateway.cluster import cluster as cluster_module
from uma_gateway.cluster.cluster import Cluster
from uma_gateway.cluster.facade import ClusterDaemon, ClusterGateway
from uma_gateway.cluster.link import TRIES_MOST
from uma_gateway.cluster.router import RouterSettings
from uma_gateway.cluster.transport import Unit, UnitLost
from uma_gateway.config import Config
from uma_gateway.errors import GatewayError, from_daemon
from uma_gateway.keys import Keys


def test_a_gateway_that_starts_loads_no_model_that_nobody_asked_for() -> None:
    transport = Sockets({})

    async def work() -> None:
        gateway = ClusterGateway(
            Config(), Keys("", ""), Cluster(transport, bytes(32)), ["m", "n", "on-demand"], ["on-demand"]
        )
        while set(transport.loads) < {"m", "n"}:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert set(transport.loads) == {"m", "n"}
        asked = asyncio.ensure_future(gateway.serving("on-demand").model())
        while "on-demand" not in transport.loads:
            await asyncio.sleep(0.01)
        asked.cancel()
        await gateway.close()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


class Away(Sockets):
    """A cluster whose only daemon is being started again."""

    def __init__(self, n_lost: int) -> None:
        super().__init__({})
        self.n_lost = n_lost

    async def units(self) -> list[Unit]:
        return [Unit("a", "n", "m")]

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> dict[str, Any]:
        self.n_lost -= operation != "digest"
        if operation == "digest" or self.n_lost >= 0:
            raise UnitLost("gone")
        return {"content": "here"}


@pytest.mark.parametrize(
    ("n_lost", "n_looks", "closed_ns", "is_answered"),
    [(2, 3, 60_000_000_000, True), (1 << 30, 1, 60_000_000_000, False), (1, 1 << 30, 0, False)],
    ids=["it-comes-back", "the-question-ends-it-each-time", "it-stays-away"],
)
def test_a_question_waits_for_a_daemon_that_is_started_again(
    n_lost: int, n_looks: int, closed_ns: int, is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`n_looks`: how many times the daemon is found absent before it takes requests again."""
    transport, looks = Away(n_lost), itertools.count(1)

    async def work() -> None:
        cluster = Cluster(transport, bytes(32))
        cluster.router.settings = replace(cluster.router.settings, closed_ns=closed_ns)
        cluster.fingerprints["a"] = "f"
        monkeypatch.setattr(cluster.router, "is_open", lambda name: not next(looks) % n_looks)
        asking = ClusterDaemon(cluster, "m").call("props")
        if is_answered:
            assert await asking == {"content": "here"}
        else:
            with pytest.raises(GatewayError) as caught:
                await asking
            assert caught.value.code == "daemon_unavailable"
        await cluster.close()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))
    assert n_lost - transport.n_lost <= TRIES_MOST


class Replaced(Sockets):
    """Its only daemon leaves at the first question, and another one is loaded."""

    def __init__(self) -> None:
        super().__init__({})
        self.names = ["a"]

    async def units(self) -> list[Unit]:
        return [Unit(name, "n", "m") for name in self.names]

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> dict[str, Any]:
        if unit.name == "a" and operation != "digest":
            self.names = []
        if unit.name not in self.names:
            raise UnitLost("m is not loaded here")
        return {**digest(), "fingerprint": "f", "generation": 1} if operation == "digest" else {"content": "here"}

    async def load(self, model: str) -> None:
        self.names = self.names or ["b"]


def test_a_question_goes_to_the_daemon_that_replaces_one_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "UNITS_S", 0.01)

    async def work() -> None:
        cluster = Cluster(Replaced(), bytes(32), RouterSettings(closed_ns=5_000_000_000))
        reply = await ClusterDaemon(cluster, "m").compute("embed", "r", {"input": ["text"]})
        assert reply == {"content": "here"}
        await cluster.close()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


class Refusing(Sockets):
    """Two daemons. Each question is refused this many times, on whichever daemon."""

    def __init__(self, n_refused: int, code: ErrorCode) -> None:
        super().__init__({})
        self.n_refused = n_refused
        self.code = code
        self.asked: list[str] = []

    async def units(self) -> list[Unit]:
        return [Unit(name, "n", "m") for name in "ab"]

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> dict[str, Any]:
        if operation == "digest":
            raise UnitLost("not of interest")
        self.asked.append(unit.name)
        if len(self.asked) <= self.n_refused:
            raise from_daemon(UmaError(self.code, retry_after_ms=700).to_dict())
        return {"embeddings": []}


@pytest.mark.parametrize(
    ("n_refused", "code", "n_asked", "told"),
    [
        (1, ErrorCode.OVERLOADED, 2, None),
        (1, ErrorCode.DRAINING, 2, None),
        (2, ErrorCode.OVERLOADED, 2, "overloaded"),
        (1, ErrorCode.UNSUPPORTED, 1, "not_supported"),
    ],
)
def test_an_embedding_that_one_daemon_refuses_is_taken_once_to_another(
    n_refused: int, code: ErrorCode, n_asked: int, told: str | None
) -> None:
    transport = Refusing(n_refused, code)

    async def work() -> None:
        cluster = Cluster(transport, bytes(32))
        cluster.fingerprints |= {"a": "f", "b": "f"}
        computing = ClusterDaemon(cluster, "m").compute("embed", "r", {"input": ["text"]})
        if told is None:
            assert await computing == {"embeddings": []}
        else:
            with pytest.raises(GatewayError) as caught:
                await computing
            assert caught.value.code == told
        await cluster.close()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))
    assert len(set(transport.asked)) == len(transport.asked) == n_asked


def test_a_reload_that_one_daemon_refuses_says_so() -> None:
    transport = Refusing(1, ErrorCode.CONFIG_INVALID)

    async def work() -> dict[str, Any]:
        cluster = Cluster(transport, bytes(32))
        cluster.fingerprints |= {"a": "f", "b": "f"}
        reply = await ClusterDaemon(cluster, "m").call("reload")
        await cluster.close()
        return reply

    units = asyncio.run(asyncio.wait_for(work(), WAIT_S))["units"]
    refused = transport.asked[0]
    assert units[refused]["error"]["code"] == "config_invalid" and units[refused]["error"]["message"]
    assert all("error" not in told for name, told in units.items() if name != refused) and len(units) == 2


PROPS = {
    "model": {"name": "m", "path": "", "fingerprint": "f", "n_ctx_train": 9, "n_vocab": 9},
    "n_ctx_seq": 9,
    "limits": {"max_tokens": 9},
    "capabilities": {
        "operations": [],
        "generate": [],
        "chat": False,
        "infill": False,
        "rerank": False,
        "embeddings": False,
    },
    "chat_template": "",
    "chat_template_tool_use": "",
    "special": {},
    "add_bos": False,
    "add_eos": False,
}


class Two(Sockets):
    """A daemon of each of two models; those in `gone` are away."""

    def __init__(self) -> None:
        super().__init__({})
        self.gone: set[str] = set()

    async def units(self) -> list[Unit]:
        return [Unit(name, "n", name) for name in "ab"]

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> dict[str, Any]:
        if unit.name in self.gone:
            raise UnitLost("gone")
        return {**digest(), "fingerprint": "f", "generation": 1} if operation == "digest" else PROPS


@pytest.mark.parametrize("n_known", [1, 2])
def test_the_list_of_models_does_not_wait_for_a_daemon_that_is_away(n_known: int) -> None:
    """`n_known`: models that are known before; of the other nothing can be told."""
    transport = Two()

    async def work() -> None:
        # who waits for a daemon is refused soon
        cluster = Cluster(transport, bytes(32), RouterSettings(closed_ns=10**9))
        gateway = ClusterGateway(Config(), Keys("", ""), cluster, ["a", "b"], ["b"])
        while not all(cluster.router.is_open(name) for name in "ab"):
            await asyncio.sleep(0.01)
        if n_known == 2:
            assert [model.name for model in await gateway.models()] == ["a", "b"]
        transport.gone.add("b")
        while cluster.router.is_open("b"):
            await asyncio.sleep(0.01)
        assert [model.name for model in await gateway.models()] == ["a", "b"][:n_known]
        await gateway.close()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


class Mixed(Sockets):
    """Three daemons of one model's name; the last one has another file than the others. Those in `gone` are away."""

    def __init__(self) -> None:
        super().__init__({})
        self.gone: set[str] = set()

    async def units(self) -> list[Unit]:
        return [Unit(name, "n", "m") for name in ("f0", "f1", "g0")]

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> dict[str, Any]:
        if unit.name in self.gone:
            raise UnitLost("gone")
        if operation == "digest":
            return {**digest(), "fingerprint": unit.name[0], "generation": 1}
        return {**PROPS, "model": {**PROPS["model"], "fingerprint": unit.name[0]}}


def test_the_model_is_that_of_most_daemons_whichever_is_asked() -> None:
    """Requests go to the daemons that have the gateway's model, so it must not change with the daemon that answers."""
    transport = Mixed()

    async def work() -> None:
        cluster = Cluster(transport, bytes(32))
        gateway = ClusterGateway(Config(), Keys("", ""), cluster, ["m"])
        while not all(cluster.router.is_open(name) for name in ("f0", "f1", "g0")):
            await asyncio.sleep(0.01)
        for _ in range(40):  # each time another daemon is the first
            assert (await gateway.model(is_new=True)).fingerprint == "f"
            await asyncio.sleep(0.001)
        transport.gone |= {"f0", "f1"}
        while cluster.router.is_open("f0") or cluster.router.is_open("f1"):
            await asyncio.sleep(0.01)
        assert (await gateway.model(is_new=True)).fingerprint == "g", "the others are away"
        await gateway.close()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))
