"""Large requests are read outside the event loop, and small requests never wait for them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from uma_gateway import large
from uma_gateway.errors import Kind, shortage
from uma_gateway.large import LARGE_BYTES, N_THREADS


@pytest.mark.parametrize(("n_bytes", "is_elsewhere"), [(100, False), (LARGE_BYTES, True)])
def test_a_large_body_is_read_in_a_thread(n_bytes: int, is_elsewhere: bool) -> None:
    thread = asyncio.run(large.read(n_bytes, threading.current_thread))
    assert (thread is not threading.main_thread()) == is_elsewhere


def test_what_is_wrong_with_a_large_body_is_told() -> None:
    with pytest.raises(ValueError, match="x"):
        asyncio.run(large.read(LARGE_BYTES, int, "x"))


def test_a_small_request_does_not_wait_for_large_ones() -> None:
    """There are more large requests than threads of any kind."""
    end = threading.Event()

    async def work() -> None:
        slow = [asyncio.ensure_future(large.in_thread(LARGE_BYTES, end.wait)) for _ in range(40 + N_THREADS)]
        try:
            assert await large.in_thread(0, lambda: "done") == "done"
            assert not any(task.done() for task in slow)
        finally:
            end.set()
        await asyncio.gather(*slow)

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize("n_bytes", [0, LARGE_BYTES])
def test_where_the_system_has_no_thread_the_client_is_told_to_come_back(
    n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> str:
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", start)
            with pytest.raises(OSError) as caught:
                await large.in_thread(n_bytes, lambda: "done")
        refusal = shortage(caught.value)
        assert refusal is not None and refusal.kind is Kind.UNAVAILABLE
        return await large.in_thread(n_bytes, lambda: "done")

    monkeypatch.setattr(large, "_threads", ThreadPoolExecutor(1))  # a pool that has no thread yet
    assert asyncio.run(asyncio.wait_for(work(), 60)) == "done"


def test_what_is_wrong_with_the_work_is_no_shortage() -> None:
    def work() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(large.in_thread(0, work))
    assert shortage(RuntimeError("a bug")) is None and shortage(MemoryError()) is not None
