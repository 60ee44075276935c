"""Several daemons behind one cluster, without Ray: one of them is killed, drained or cut off while it has requests.

Every request is accounted for: it has exactly one end, and the text that was sent is exactly the right text.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.daemon.support import WAIT_S, DaemonProcess
from tests.gateway.cluster.sockets import Sockets
from uma_gateway.cluster.cluster import Cluster
from uma_gateway.cluster.facade import ClusterDaemon
from uma_gateway.cluster.local import LocalDaemon
from uma_gateway.cluster.router import RouterSettings
from uma_gateway.errors import GatewayError, from_daemon

pytestmark = pytest.mark.daemon
KEY = bytes(range(32))
LANE = ("--parallel", "8", "--n-ctx", "16384")


def is_same(text: str, expected: str) -> bool:
    """Compare up to the first byte that is not text: the simulated model writes such bytes, and after one a continued
    answer may differ.
    """
    n = expected.find("\ufffd")
    return text == expected if n < 0 else text[:n] == expected[:n]


class Answer:
    """The answer that a client got."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.text = ""
        self.ends: list[str] = []
        self.error: GatewayError | None = None
        self.usage: dict[str, int] = {}

    @property
    def end(self) -> str:
        assert len(self.ends) == 1, f"request {self.number} ended {self.ends}"
        return self.ends[0]


def on_cluster(
    daemons: list[DaemonProcess], work: Callable[[Cluster, Sockets], Coroutine[Any, Any, Any]], **settings: Any
) -> Any:
    async def run() -> Any:
        transport = Sockets({f"n{i}": LocalDaemon(daemon.path) for i, daemon in enumerate(daemons)})
        cluster = Cluster(transport, KEY, RouterSettings(**settings))
        cluster.start()
        while len(cluster.of_model("m")) < len(daemons):
            await asyncio.sleep(0.02)
        try:
            return await asyncio.wait_for(work(cluster, transport), WAIT_S)
        finally:
            await cluster.close()
            for local in transport.daemons.values():
                await local.daemon.close()

    return asyncio.run(run())


def prompt_of(number: int) -> str:
    return f"request {number}: " + "the same words for all of them, " * 3


async def ask(
    cluster: Cluster, number: int, n: int = 30, has_begun: asyncio.Event | None = None, **fields: Any
) -> Answer:
    answer = Answer(number)
    request = {"prompt": prompt_of(number), "max_tokens": n, "ignore_eos": True, "priority": "interactive", **fields}
    async with await ClusterDaemon(cluster, "m").generate(request, f"r{number}") as generation:
        try:
            while not answer.ends:
                for event in await generation.events():
                    if event["event"] == "token":
                        answer.text += event["text"]
                        if has_begun is not None:
                            has_begun.set()
                    elif event["event"] == "eos":
                        answer.ends.append(event["reason"])
                        answer.usage = event["usage"]
                    elif event["event"] == "error":
                        raise from_daemon(event)
        except GatewayError as error:
            answer.error = error
            answer.ends.append(str(error.code))
    return answer


def alone(daemon: DaemonProcess, number: int, n: int = 30) -> str:
    return "".join(
        event["text"] for event in daemon.generate(prompt_of(number), max_tokens=n) if event["event"] == "token"
    )


async def in_the_middle(cluster: Cluster, transport: Sockets, daemon_name: str) -> None:
    """Wait until a daemon has some streams that have begun and some that have not."""
    while not any(row["unit"] == daemon_name and row["requests"] > 8 for row in cluster.table()):
        await asyncio.sleep(0.01)
    while not (await transport.daemons[daemon_name].daemon.call("status"))["sessions"]["decode"]:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)  # their first tokens are on the way


@pytest.mark.parametrize("is_resumed", [True, pytest.param(False, marks=pytest.mark.fuzz)])
def test_a_daemon_is_killed_in_the_middle_of_100_streams(
    fakes: Callable[..., list[DaemonProcess]], is_resumed: bool
) -> None:
    daemons = fakes(3, *LANE)
    whole = {i: alone(daemons[0], i) for i in range(100)}
    for daemon in daemons:
        daemon.pull(step_ms=30)

    async def work(cluster: Cluster, transport: Sockets) -> tuple[list[Answer], dict[str, int]]:
        tasks = [asyncio.ensure_future(ask(cluster, i, x_resume=is_resumed)) for i in range(100)]
        await in_the_middle(cluster, transport, "n1")
        daemons[1].signal(signal.SIGKILL)
        answers = await asyncio.gather(*tasks)
        return answers, dict(cluster.counts)

    answers, counts = on_cluster(daemons, work, slack=1.0)
    ends = Counter(answer.end for answer in answers)
    complete = [answer for answer in answers if answer.end == "length"]
    assert all(
        is_same(answer.text, whole[answer.number]) and answer.usage["completion_tokens"] == 30 for answer in complete
    )
    lost = [answer for answer in answers if answer.end == "replica_lost"]
    assert len(complete) + len(lost) == 100, ends
    assert counts["replayed"] > 0, "some had sent nothing yet"
    if is_resumed:
        assert not lost and counts["resumed"] > 0
        return
    assert 1 <= len(lost) == counts["lost"] <= 8, "those that had begun"
    for answer in lost:
        assert answer.error is not None and answer.text and whole[answer.number].startswith(answer.text)
        assert answer.error.extra["characters_sent"] == len(answer.text)
        assert answer.error.extra["tokens_sent"] > 0


def test_a_daemon_that_drains_loses_nothing(fakes: Callable[..., list[DaemonProcess]]) -> None:
    daemons = fakes(2, *LANE)
    whole = {i: alone(daemons[0], i) for i in range(60)}
    for daemon in daemons:
        daemon.pull(step_ms=5)

    async def work(cluster: Cluster, transport: Sockets) -> list[Answer]:
        tasks = [asyncio.ensure_future(ask(cluster, i)) for i in range(60)]
        await in_the_middle(cluster, transport, "n0")
        await transport.daemons["n0"].call("drain", 5.0, {})
        return await asyncio.gather(*tasks)

    answers = on_cluster(daemons, work)
    assert [(answer.end, answer.text) for answer in answers] == [("length", whole[i]) for i in range(60)]


@pytest.mark.fuzz
def test_a_daemon_that_is_cut_off_ends_in_errors_within_the_time(fakes: Callable[..., list[DaemonProcess]]) -> None:
    daemons = fakes(2, *LANE)
    for daemon in daemons:
        daemon.pull(step_ms=10)

    async def work(cluster: Cluster, transport: Sockets) -> tuple[list[Answer], list[Answer]]:
        tasks = [asyncio.ensure_future(ask(cluster, i)) for i in range(40)]
        await in_the_middle(cluster, transport, "n1")
        transport.cut.add("n1")
        answers = await asyncio.gather(*tasks)
        after = await asyncio.gather(*(ask(cluster, 100 + i, 5) for i in range(4)))
        transport.cut.clear()
        while not all(row["is_open"] for row in cluster.table()):
            await asyncio.sleep(0.05)
        return answers, after

    answers, after = on_cluster(daemons, work, lost_ns=2_000_000_000)
    ends = Counter(answer.end for answer in answers)
    assert ends["length"] + ends["replica_lost"] == 40 and 1 <= ends["replica_lost"] <= 8
    assert [answer.end for answer in after] == ["length"] * 4, "the others go on"


@pytest.mark.parametrize("n_refusals", [2, pytest.param(1, marks=pytest.mark.fuzz)])
def test_a_refusal_is_taken_elsewhere_once(fakes: Callable[..., list[DaemonProcess]], n_refusals: int) -> None:
    """Other clients have filled the daemons, and the router learns that only from a refusal."""
    daemons = fakes(3, *LANE)

    async def work(cluster: Cluster, transport: Sockets) -> tuple[list[Answer], dict[str, int]]:
        transport.n_refusals = n_refusals
        answers = [await ask(cluster, i, 5) for i in range(3)]
        return answers, dict(cluster.counts)

    answers, counts = on_cluster(daemons, work)
    first = answers[0]
    assert [answer.end for answer in answers] == ["length" if n_refusals == 1 else "overloaded", "length", "length"]
    assert counts["rerouted"] == 1
    if n_refusals == 2:  # the client gets the second refusal
        assert first.error is not None and first.error.retry_after_ms == 700


def test_a_request_that_ends_every_daemon_is_given_up(fakes: Callable[..., list[DaemonProcess]]) -> None:
    """No request may go on for ever, and the requests behind it are served."""
    daemons = fakes(1, *LANE)
    daemons[0].pull(step_ms=20)

    async def work(cluster: Cluster, transport: Sockets) -> Answer:
        task = asyncio.ensure_future(ask(cluster, 1, timeout_ms=1500.0))
        await asyncio.sleep(0.3)
        daemons[0].signal(signal.SIGKILL)
        return await task

    answer = on_cluster(daemons, work)
    assert answer.end in ("replica_lost", "timeout")


def test_a_client_that_goes_is_cancelled_wherever_it_is(fakes: Callable[..., list[DaemonProcess]]) -> None:
    """While its prompt is hashed, while it waits for a daemon, and while it is answered."""
    daemons = fakes(2, "--parallel", "2")
    for daemon in daemons:
        daemon.pull(step_ms=20)

    async def go(cluster: Cluster, pause_s: float) -> None:
        tasks = [asyncio.ensure_future(ask(cluster, i, 2000)) for i in range(30)]
        await asyncio.sleep(pause_s)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def work(cluster: Cluster, transport: Sockets) -> None:
        tasks = [asyncio.ensure_future(ask(cluster, i, 2000)) for i in range(30)]
        while not cluster.router.n_waiting:
            await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for i in range(40):
            await go(cluster, i * 0.0005)
        while cluster.router.n_waiting or any(row["requests"] for row in cluster.table()):
            await asyncio.sleep(0.02)

    on_cluster(daemons, work)
    for daemon in daemons:
        daemon.eventually_idle()


@pytest.mark.fuzz
def test_a_chat_goes_where_it_began(fakes: Callable[..., list[DaemonProcess]]) -> None:
    daemons = fakes(4, *LANE)

    async def work(cluster: Cluster, transport: Sockets) -> list[int]:
        texts = [prompt_of(i) * 4 for i in range(8)]
        cached = []
        for turn in range(4):
            for i, text in enumerate(texts):
                answer = await ask(cluster, turn * 10 + i, 20, prompt=text)
                texts[i] += answer.text + " and then? "
                cached.append(answer.usage["cached_tokens"] / answer.usage["prompt_tokens"])
        return cached

    cached = on_cluster(daemons, work)
    assert min(cached[8:]) > 0.8, cached


def test_vectors_are_made_by_the_cluster_s_daemons_and_by_another_when_one_is_lost(
    fakes: Callable[..., list[DaemonProcess]],
) -> None:
    daemons = fakes(2)

    async def work(cluster: Cluster, transport: Sockets) -> None:
        daemon = ClusterDaemon(cluster, "m")
        reply = await daemon.compute("embed", "e1", {"input": ["one", "two"]})
        assert len(reply["embeddings"]) == 2
        os.kill(daemons[0].process.pid, signal.SIGKILL)
        for i in range(3):
            assert (await daemon.compute("embed", f"k{i}", {"input": ["one"]}))["embeddings"] == reply["embeddings"][:1]

    on_cluster(daemons, work)


def test_who_asks_a_daemon_that_hangs_is_told_as_soon_as_it_counts_as_lost(
    fakes: Callable[..., list[DaemonProcess]],
) -> None:
    async def work(cluster: Cluster, transport: Sockets) -> None:
        daemon = ClusterDaemon(cluster, "m")
        transport.cut.add("n0")
        for _ in range(2):  # before and after it is known to be silent
            vectors = asyncio.gather(*(daemon.compute("embed", f"e{i}", {"input": ["one"]}) for i in range(8)))
            status = daemon.call("status", 3600.0)
            replies, told = await asyncio.gather(vectors, status)
            assert all(len(reply["embeddings"]) == 1 for reply in replies)
            assert set(told["units"]) == {"n1"}
        transport.cut.clear()
        while set((await daemon.call("status"))["units"]) != {"n0", "n1"}:
            await asyncio.sleep(0.05)

    on_cluster(fakes(2), work, lost_ns=500_000_000)


def test_a_request_of_any_daemon_is_cancelled_by_the_id_that_is_shown(
    fakes: Callable[..., list[DaemonProcess]],
) -> None:
    daemons = fakes(2)
    for each in daemons:
        each.pull(step_ms=20)

    async def work(cluster: Cluster, transport: Sockets) -> Answer:
        daemon = ClusterDaemon(cluster, "m")
        asked = asyncio.ensure_future(ask(cluster, 1, 2000))
        while not (rows := (await daemon.call("sessions"))["sessions"]):
            await asyncio.sleep(0.02)
        assert await daemon.cancel("nobody") == {"found": False}
        assert await daemon.cancel(rows[0]["request_id"]) == {"found": True}
        return await asked

    assert on_cluster(daemons, work).end == "cancelled"


def test_of_requests_with_one_id_that_of_the_shown_connection_is_cancelled(
    fakes: Callable[..., list[DaemonProcess]],
) -> None:
    """Clients choose ids."""
    daemons = fakes(1)
    daemons[0].pull(step_ms=20)

    async def work(cluster: Cluster, transport: Sockets) -> list[str]:
        daemon = ClusterDaemon(cluster, "m")
        asked = [asyncio.ensure_future(ask(cluster, 1, 2000)) for _ in range(2)]
        while len(rows := (await daemon.call("sessions"))["sessions"]) < 2:
            await asyncio.sleep(0.02)
        ends = []
        for row in rows:
            assert {each["conn"] for each in (await daemon.call("sessions"))["sessions"]} >= {row["conn"]}
            assert await daemon.cancel(row["request_id"], row["conn"]) == {"found": True}
            done, left = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            ends += [each.result().end for each in done]
            asked = list(left)
        return ends

    assert on_cluster(daemons, work) == ["cancelled"] * 2


def test_what_is_asked_of_all_is_told_as_one(fakes: Callable[..., list[DaemonProcess]]) -> None:
    daemons = fakes(2, *LANE)

    async def work(cluster: Cluster, transport: Sockets) -> None:
        daemon = ClusterDaemon(cluster, "m")
        await asyncio.gather(*(ask(cluster, i, 5) for i in range(10)))
        status = await daemon.call("status")
        assert set(status["units"]) == {"n0", "n1"} and status["state"] == "ready"
        assert status["kv"]["cells_total"] == 2 * 16384
        totals = (await daemon.call("metrics"))["metrics"]
        assert totals["tokens_generated_total"] == 50 or sum(totals["tokens_generated_total"].values()) == 50
        text = (await daemon.call("metrics", format="prometheus"))["text"]
        ready = [line for line in text.splitlines() if line.startswith("uma_ready{")]
        assert ready == [f'uma_ready{{node="n{i}",model="m",unit="n{i}"}} 1' for i in range(2)]
        assert len([line for line in text.splitlines() if line.startswith("# TYPE uma_ready ")]) == 1
        trace = await daemon.call("trace", seconds=0.05, format="chrome")
        names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
        assert names == ["m on n0", "m on n1"]
        assert {event["pid"] for event in trace["traceEvents"]} == {1, 2}
        assert (await daemon.call("drain"))["state"] == "draining"
        assert (await daemon.call("health"))["is_ready"] is False
        assert (await daemon.call("undrain"))["state"] == "ready"

    on_cluster(daemons, work)
