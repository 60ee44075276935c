"""A node's daemon on this machine: started, adopted, watched, restarted, stopped, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest

from tests.daemon.support import ROOT, WAIT_S, DaemonProcess, eventually, is_alive
from uma_gateway.cluster import local
from uma_gateway.cluster.local import LocalDaemon
from uma_gateway.cluster.transport import UnitLost

pytestmark = pytest.mark.daemon
FAKE = ("--engine", "fake", "--calibrate", "off", "--log-level", "error")
SLOW = (*FAKE, "--model", "step-20ms")
OWNER = """
import asyncio, sys
from uma_gateway.cluster.local import LocalDaemon

async def main():
    daemon = LocalDaemon(sys.argv[1], sys.argv[2:])
    daemon.start()
    await daemon.ready(60)
    print(daemon.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def kept(path: Path, *args: str, drain_s: float = 0.0, **settings: object) -> AsyncIterator[LocalDaemon]:
    daemon = LocalDaemon(str(path / "d.sock"), args, **settings)  # type: ignore[arg-type]
    daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop(drain_s)


async def until(condition: Callable[[], object]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(wait(), WAIT_S)


async def read(daemon: LocalDaemon, n_tokens: int) -> list[str]:
    """Return a request's events, by name, and the reason of its end."""
    found = []
    fields = {"type": "generate", "id": f"r{n_tokens}", "prompt": "hello", "max_tokens": n_tokens, "ignore_eos": True}
    async for payloads in daemon.stream(fields):
        for payload in payloads:
            event = orjson.loads(payload)
            found.append(event["reason"] if event["event"] == "eos" else event["event"])
    return found


def test_a_daemon_is_started_used_and_started_again_after_a_crash(folder: Path) -> None:
    async def work() -> int:
        async with kept(folder, *FAKE) as daemon:
            await daemon.ready(WAIT_S)
            pid = daemon.pid
            assert not daemon.is_adopted and (await read(daemon, 3))[-1] == "length"
            os.kill(pid, signal.SIGKILL)
            await until(lambda: daemon.restarts == 1 and daemon.pid not in (0, pid))
            await daemon.ready(WAIT_S)
            assert (await read(daemon, 3))[-1] == "length"
            return daemon.pid

    assert not is_alive(asyncio.run(work()))


def test_a_daemon_that_cannot_be_started_for_now_is_started_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, n_failures = asyncio.create_subprocess_exec, 2

    async def failing(*args: object, **kwargs: object) -> object:
        nonlocal n_failures
        n_failures -= 1
        if n_failures >= 0:
            raise OSError(errno.EAGAIN, "no more processes")
        return await start(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", failing)
    monkeypatch.setattr(local, "FIRST_PAUSE_S", 0.01)

    async def work() -> None:
        async with kept(folder, *FAKE) as daemon:
            await daemon.ready(WAIT_S)
            assert daemon.restarts == 2

    asyncio.run(work())
    assert caplog.text.count("cannot be started: [Errno 11] no more processes") == 2


def test_running_answers_end_before_the_daemon_does(folder: Path) -> None:
    async def work() -> list[str]:
        async with kept(folder, *SLOW, drain_s=60.0) as daemon:
            await daemon.ready(WAIT_S)
            running = asyncio.ensure_future(read(daemon, 30))
            await until(lambda: daemon.n_streams)
            await asyncio.sleep(0.1)
        return await running

    events = asyncio.run(work())
    assert events[-1] == "length" and events.count("token") == 30


def test_a_daemon_that_computes_embeddings_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle daemon may be evicted, and a daemon that leaves waits for the requests in use."""

    async def work() -> None:
        daemon, has_begun, is_done = LocalDaemon("/absent"), asyncio.Event(), asyncio.Event()

        async def compute(operation: str, request_id: str, fields: object) -> dict[str, object]:
            has_begun.set()
            await is_done.wait()
            return {"embeddings": []}

        monkeypatch.setattr(daemon.daemon, "compute", compute)
        computing = asyncio.ensure_future(daemon.call("embed", WAIT_S, {"id": "r", "input": ["text"]}))
        await has_begun.wait()
        t_begun, n_computing = daemon.t_used, daemon.n_streams
        is_done.set()
        assert await computing == {"embeddings": []}
        assert (n_computing, daemon.n_streams) == (1, 0) and daemon.t_used > t_begun

    asyncio.run(work())


def test_requests_that_have_the_same_id_are_cancelled_and_end_apart(fakes: Callable[..., list[DaemonProcess]]) -> None:
    """Clients choose ids."""
    (other,) = fakes(1, "--model", "step-20ms")

    async def ended(daemon: LocalDaemon, attempt: str, n: int) -> str:
        fields = {"id": "r", "type": "generate", "prompt": "p", "max_tokens": n, "ignore_eos": True}
        reasons = []
        async for payloads in daemon.stream({**fields, "x_attempt": attempt}):
            reasons += [event["reason"] for event in map(orjson.loads, payloads) if event["event"] == "eos"]
        (reason,) = reasons
        return str(reason)

    async def work() -> None:
        daemon = LocalDaemon(other.path)
        first, short, last = (
            asyncio.ensure_future(ended(daemon, name, n)) for name, n in (("a", 2000), ("b", 3), ("c", 2000))
        )
        assert await short == "length"
        for attempt, running in (("a", first), ("c", last)):
            assert (await daemon.call("cancel", WAIT_S, {"id": "r", "attempt": attempt}))["found"]
            assert await running == "cancelled"
            assert attempt == "c" or not last.done()
        assert not (await daemon.call("cancel", WAIT_S, {"id": "r"}))["found"]
        await daemon.daemon.close()

    asyncio.run(work())


def test_a_daemon_of_somebody_else_is_used_and_never_stopped(fakes: Callable[..., list[DaemonProcess]]) -> None:
    (other,) = fakes(1)

    async def work() -> None:
        daemon = LocalDaemon(other.path, FAKE)
        daemon.start()
        await until(lambda: daemon.is_adopted)
        assert daemon.pid == 0 and (await read(daemon, 3))[-1] == "length"
        await daemon.stop(drain_s=5.0)

    asyncio.run(work())
    assert other.state() == "ready"


def test_where_one_may_only_be_adopted_none_is_started(folder: Path) -> None:
    async def work() -> None:
        async with kept(folder, is_startable=False) as daemon:
            with pytest.raises(UnitLost):
                await daemon.ready(0.3)
            with pytest.raises(UnitLost):
                await daemon.call("status", 1.0, {})
            assert daemon.pid == 0

    asyncio.run(work())


def test_a_daemon_that_hangs_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "STOP_S", 0.2)

    async def work() -> None:
        async with kept(folder, *FAKE) as daemon:
            await daemon.ready(WAIT_S)
            monkeypatch.setattr(daemon, "_hang_s", 1.0)  # a start takes longer on a busy machine
            pid = daemon.pid
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: daemon.restarts == 1)
            monkeypatch.setattr(daemon, "_hang_s", local.HANG_S)
            assert not is_alive(pid)
            await daemon.ready(WAIT_S)

    asyncio.run(work())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_does_not_outlive_who_started_it(folder: Path, how: signal.Signals) -> None:
    """A killed process cannot tell its daemon anything: the pipe closes by itself."""
    path = str(folder / "d.sock")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, path, *FAKE], stdout=subprocess.PIPE, cwd=ROOT)
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.send_signal(how)
    eventually(lambda: not is_alive(pid), "its daemon was left behind")
    assert not os.path.exists(path)
