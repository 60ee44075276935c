"""A node: which models it loads, refuses and evicts within its memory, and what it answers for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.support import WAIT_S, DaemonProcess
from uma_gateway.cluster import node as node_module
from uma_gateway.cluster.node import Node
from uma_gateway.cluster.settings import parse

FAKE = ["--engine", "fake", "--calibrate", "off", "--log-level", "error"]
BUDGET_MB = 100


class Puppet:
    """A daemon as a node sees it, without a process."""

    running: ClassVar[set[str]] = set()

    def __init__(self, path: str, args: Any = (), is_startable: bool = True) -> None:
        self.path = path
        self.is_adopted = not is_startable
        self.state, self.restarts, self.n_streams, self.is_starting = "ready", 0, 0, False
        self.t_used = time.monotonic()

    def start(self) -> None:
        assert self.path not in self.running
        self.running.add(self.path)

    async def stop(self, drain_s: float) -> None:
        assert not self.n_streams, "a model in use was stopped"
        self.running.remove(self.path)


def models(**sizes: int) -> list[dict[str, Any]]:
    """One model that stays, and others that are loaded on demand and may be evicted at once."""
    return [{"name": "stays", "memory_mb": 10}] + [
        {"name": name, "memory_mb": size, "replicas": 0, "idle_s": 0.0} for name, size in sizes.items()
    ]


SIZES = {"a": 30, "b": 50, "c": 60, "d": 90, "e": 95}
steps = st.lists(
    st.tuples(st.sampled_from(["load", "begin", "end", "evict"]), st.sampled_from(["stays", *SIZES])), max_size=40
)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_models_in_use_and_those_that_stay_are_never_evicted_and_memory_is_kept_to(
    script: list[tuple[str, str]],
) -> None:
    async def work() -> None:
        Puppet.running = set()
        node = Node(parse({"models": models(**SIZES), "memory_mb": BUDGET_MB}), "n", "node")
        need = {"stays": 10, **SIZES}
        has_stayed = False
        for what, model in script:
            loaded = (await node.about())["models"]
            in_use = {name for name in loaded if node._daemons[name].n_streams}
            if what == "load":
                kept_mb = sum(need[name] for name in loaded if name in in_use or name == "stays")
                fits = model in loaded or kept_mb + need[model] <= BUDGET_MB
                reply = await node.load(model)
                assert ("error" not in reply) == fits, reply
                has_stayed |= model == "stays" and fits
            elif what == "begin" and model in loaded:
                node._daemons[model].n_streams += 1
            elif what == "end" and model in in_use:
                node._daemons[model].n_streams -= 1
            elif what == "evict":
                await node.evict_idle()
            about = await node.about()
            assert in_use - {model} <= about["models"].keys() and ("stays" in about["models"]) == has_stayed
            assert about["free_mb"] == BUDGET_MB - sum(need[name] for name in about["models"]) >= 0
            assert len(Puppet.running) == len(about["models"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_module, "LocalDaemon", Puppet)
        asyncio.run(work())


def test_a_model_that_is_about_to_be_loaded_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another gateway would have it loaded on another node, too."""
    monkeypatch.setattr(node_module, "LocalDaemon", Puppet)
    Puppet.running = set()
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def estimate(_: Any) -> int:
        begun.set()
        await may_end.wait()
        raise ValueError("no such file")

    monkeypatch.setattr(node_module, "estimate_mb", estimate)

    async def work() -> None:
        node = Node(parse({"models": [{"name": "m"}], "memory_mb": 100}), "n", "node")
        loading = [asyncio.ensure_future(node.load("m")) for _ in range(2)]
        await begun.wait()
        assert (await node.about())["models"]["m"]["state"] == "starting"
        may_end.set()
        assert [await each for each in loading] == [{"error": "no such file"}] * 2
        assert not (await node.about())["models"]

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


@pytest.mark.daemon
def test_the_requests_of_a_gateway_that_has_ended_are_cancelled(fakes: Callable[..., list[DaemonProcess]]) -> None:
    """Ray lets an actor go on with a call whose caller has ended."""
    (daemon,) = fakes(1)
    daemon.pull(step_ms=20)

    async def read(node: Node, gateway: str, n_tokens: int) -> str:
        fields = {"type": "generate", "id": gateway, "prompt": "p", "max_tokens": n_tokens, "ignore_eos": True}
        end = ""
        async for item in node.stream("m", {**fields, "x_gateway": gateway}):
            end = item if isinstance(item, str) else item[-1].decode()
        return end

    async def work() -> None:
        node = Node(parse({"models": [{"name": "m", "socket": daemon.path}]}), "n", "node")
        await node.load("m")
        await node._daemons["m"].ready(WAIT_S)
        ended, other = (asyncio.ensure_future(read(node, name, n)) for name, n in (("ended", 10_000), ("other", 50)))
        while len(node._daemons["m"]._links) < 2:
            await asyncio.sleep(0.01)
        node.cancel_orphans()
        assert node._daemons["m"].n_streams == 2
        node._heard["ended"] -= node_module.GONE_S + 1.0
        node.cancel_orphans()
        assert "closed" in await ended and '"length"' in await other
        await node.stop()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_a_node_that_leaves_finishes_its_answers() -> None:
    """No gateway calls it any more, because Serve does not list it; it has `drain_s`, which is longer."""
    node = Node(parse({"models": [{"name": "m"}]}), "n", "node")
    ended: list[Any] = []
    node._daemons["m"] = SimpleNamespace(end_of=ended.append)  # type: ignore[assignment]
    for gateway in ("a", "b"):
        node.heard(gateway)
        node._heard[gateway] -= node_module.GONE_S + 1.0
    node.cancel_orphans()
    assert not ended
    node.heard("b")
    node.cancel_orphans()
    assert ended == [{"a"}], "nodes that stay hear of the others"


def test_the_longest_idle_goes_first_and_only_as_many_as_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "LocalDaemon", Puppet)
    Puppet.running = set()

    async def work() -> None:
        node = Node(parse({"models": models(a=30, b=30, c=30), "memory_mb": 90}), "n", "node")
        for model in ("b", "a"):
            assert await node.load(model) == {"is_new": True}
        assert await node.load("a") == {"is_new": False}
        node._daemons["b"].t_used -= 10
        node._daemons["a"].t_used -= 5
        node.settings = node.settings.__class__(**{**vars(node.settings), "memory_mb": 60})
        assert await node.load("c") == {"is_new": True}
        assert set((await node.about())["models"]) == {"a", "c"}
        assert await node.load("unknown") == {"error": "no model unknown is configured"}

    asyncio.run(work())


@pytest.mark.parametrize("is_room_needed", [True, False], ids=["for-another-model", "for-idleness"])
def test_a_model_that_is_used_again_while_another_is_evicted_stays(
    is_room_needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon takes its time to stop."""
    node = Node(parse({"models": models(a=30, b=30, c=60), "memory_mb": 70}), "n", "node")

    class Slow(Puppet):
        async def stop(self, drain_s: float) -> None:
            await super().stop(drain_s)
            for daemon in node._daemons.values():
                daemon.n_streams += 1

    monkeypatch.setattr(node_module, "LocalDaemon", Slow)
    Puppet.running = set()

    async def work() -> None:
        await node.load("a")
        await node.load("b")
        if is_room_needed:
            assert "error" in await node.load("c")
        else:
            await node.evict_idle()
        assert set((await node.about())["models"]) == {"b"}

    asyncio.run(work())


def test_a_model_that_starts_slowly_is_not_evicted_before_anybody_could_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short its time: it would be loaded again and again, and its first request would never be answered."""
    monkeypatch.setattr(node_module, "LocalDaemon", Puppet)
    Puppet.running = set()

    async def work() -> None:
        node = Node(parse({"models": models(a=30, b=30), "memory_mb": 40}), "n", "node")
        await node.load("a")
        node._daemons["a"].is_starting = True
        await node.evict_idle()
        assert "error" in await node.load("b") and set((await node.about())["models"]) == {"a"}
        node._daemons["a"].is_starting = False
        assert await node.load("b") == {"is_new": True} and set((await node.about())["models"]) == {"b"}

    asyncio.run(work())


def test_a_folder_of_somebody_else_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr("os.getuid", lambda: 4242)
    node = Node(parse({"models": [{"name": "m", "memory_mb": 1}]}), "n", "node")
    assert "uma-cluster-4242 can be written by others" in asyncio.run(node.load("m"))["error"]


def test_models_whose_names_begin_alike_have_sockets_of_their_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node uses any daemon that it finds on its socket: with a shared socket, one model would answer for the
    other.
    """
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    names = [f"{'a' * 63}{end}" for end in "bc"] + ["a" * 40, "a"]
    node = Node(parse({"models": [{"name": name} for name in names]}), "n", "node" * 14)
    paths = [node._socket(name) for name in names]
    assert len(set(paths)) == len(names)
    longest = max(len(Path(path).name) for path in paths)
    assert longest <= 58, "a longer one would not fit into the path of a Unix socket where it fitted before"
    assert Path(paths[-1]).name == "nodenodenode-a.sock"


@pytest.mark.daemon
def test_a_model_of_ones_own_is_estimated_started_asked_and_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))

    async def work() -> None:
        chosen = [{"name": "m", "daemon": FAKE}, {"name": "bad", "daemon": ["--model", "/absent.gguf"], "replicas": 0}]
        node = Node(parse({"models": chosen}), "n", "node")
        assert await node.call("m", "status", 1.0, {}) == {"lost": "m is not loaded here"}
        refused = await node.load("bad")
        assert "/absent.gguf" in refused["error"], "what the daemon itself says of it"
        assert await node.load("m") == {"is_new": True}
        assert node._daemons["m"].is_starting
        await node._daemons["m"].ready(WAIT_S)
        assert not node._daemons["m"].is_starting
        about = await node.about()
        assert about["need_mb"]["m"] > 0 and about["models"]["m"]["state"] == "ready"
        assert (await node.call("m", "status", 5.0, {}))["reply"]["state"] == "ready"
        assert "error" in await node.call("m", "tokenize", 5.0, {}), "a refusal is not a loss"
        fields = {"type": "generate", "id": "r", "prompt": "hello", "max_tokens": 2, "ignore_eos": True}
        events = [orjson.loads(each) async for item in node.stream("m", fields) for each in item]
        assert [event["event"] for event in events][-2:] == ["token", "eos"]
        await node.stop()
        assert [item async for item in node.stream("m", fields)] == ["m is not loaded here"]

    asyncio.run(work())
