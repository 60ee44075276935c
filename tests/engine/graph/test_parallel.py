"""Threads that load weights: results in order, the first error ends it, and files are read whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from uma_core.engine.graph.parallel import N_PENDING, in_parallel, read_into, will_need


def test_results_come_in_order_on_the_callers_thread() -> None:
    found: list[tuple[int, bool]] = []
    caller, first_may_end = threading.get_ident(), threading.Event()

    def work(n: int) -> int:
        if n == 0:
            assert first_may_end.wait(10)
        elif n == 3:
            first_may_end.set()
        return n * n

    in_parallel(work, range(50), 2, lambda result: found.append((result, threading.get_ident() == caller)))
    assert found == [(n * n, True) for n in range(50)]


def test_items_are_drawn_only_a_little_ahead() -> None:
    """Drawing one asks the disk for it, and all at once would fill the memory."""
    n_drawn = n_done = 0

    def items() -> Iterator[int]:
        nonlocal n_drawn
        for n in range(200):
            n_drawn += 1
            assert n_drawn - n_done <= 2 * N_PENDING + 1
            yield n

    def done(_: int) -> None:
        nonlocal n_done
        n_done += 1

    in_parallel(lambda n: n, items(), 2, done)
    assert n_drawn == n_done == 200


@pytest.mark.parametrize("where", ["work", "items", "done"])
def test_the_first_error_ends_it_once_the_threads_are_idle(where: str) -> None:
    n_running, n_worked, lock = 0, 0, threading.Lock()

    def fail(here: str, n: int) -> None:
        if here == where and n == 5:
            raise ValueError(where)

    def work(n: int) -> int:
        nonlocal n_running, n_worked
        with lock:
            n_running, n_worked = n_running + 1, n_worked + 1
        try:
            fail("work", n)
        finally:
            with lock:
                n_running -= 1
        return n

    def items() -> Iterator[int]:
        for n in range(1000):
            fail("items", n)
            yield n

    with pytest.raises(ValueError, match=where):
        in_parallel(work, items(), 2, lambda n: fail("done", n))
    assert n_running == 0 and n_worked < 1000


def test_nothing_to_do_is_done() -> None:
    in_parallel(lambda n: n, [], 2, lambda n: pytest.fail("nothing was asked for"))


def test_a_part_of_a_file_is_read_whole_or_not(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(200)))
    fd = os.open(path, os.O_RDONLY)
    try:
        will_need(fd, 0, 200)
        buffer = bytearray(100)
        assert read_into(fd, memoryview(buffer), 50) and buffer == bytes(range(50, 150))
        assert read_into(fd, memoryview(buffer)[:0], 500)
        assert not read_into(fd, memoryview(buffer), 101)
    finally:
        os.close(fd)


def test_a_read_that_stops_halfway_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(200)))

    def short(fd: int, n: int, offset: int) -> bytes:
        return os.read(fd, 0) if offset >= 200 else bytes(range(200))[offset : offset + min(n, 7)]

    monkeypatch.delattr(os, "preadv", raising=False)
    monkeypatch.setattr(os, "pread", short)
    fd = os.open(path, os.O_RDONLY)
    try:
        buffer = bytearray(100)
        assert read_into(fd, memoryview(buffer), 3) and buffer == bytes(range(3, 103))
        assert not read_into(fd, memoryview(buffer), 150)
    finally:
        os.close(fd)
