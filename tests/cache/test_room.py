"""Which idle sequences make room: the oldest first, but none whose removal would free nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.engine.conftest import DRAFT, OPTIONS
from tests.executor.rig import new_executor
from uma_core.cache.resident import Resident
from uma_core.cache.room import make_cells
from uma_core.cache.settings import CacheSettings
from uma_core.clock import MonotonicClock
from uma_core.engine.api import NO_PAGES, Engine
from uma_core.engine.graph.engine import GraphEngine
from uma_core.executor.executor import Executor
from uma_core.session.events import Final, Submit
from uma_core.types import Peer, Request

PAGE = 10
PEER = Peer(1, 1, 1)


class Copier(NamedTuple):
    span: tuple[int, int]

    def lose_source(self) -> None: ...


def emptied(
    pages: dict[int, list[int]],
    n_free: int,
    running: Any = NO_PAGES,
    size: int = PAGE,
    busy: tuple[int, ...] = (),
    copied: dict[int, tuple[int, int]] | None = None,
) -> list[int]:
    """Return the sequences that are emptied, in order. Older ones have lower numbers. `copied`: positions that are
    about to be copied.
    """
    residents, gone = [], []
    for seq_id, own in pages.items():
        resident = Resident(seq_id)
        resident.n, resident.t_used, resident.owner = len(own) * PAGE, seq_id, int(seq_id in busy)
        resident.readers = {Copier(span) for other, span in (copied or {}).items() if other == seq_id}
        residents.append(resident)
    engine = SimpleNamespace(
        info=SimpleNamespace(kv_page=size), kv_pages=lambda seq, n: np.array(pages[seq][: -(-n // PAGE)], np.int32)
    )
    counter = SimpleNamespace(add=lambda: None)
    meters = SimpleNamespace(evictions={"resident": counter})

    def empty(resident: Resident) -> None:
        gone.append(resident.seq_id)
        resident.n = 0

    make_cells(SimpleNamespace(residents=residents, engine=engine, meters=meters, leave=empty), n_free, running)  # type: ignore[arg-type]
    return gone


APART = {0: [1, 2], 1: [3], 2: [4, 5]}


@pytest.mark.parametrize("size", [1, PAGE])
@pytest.mark.parametrize(
    ("n_free", "expected"), [(50, []), (49, [0]), (30, [0]), (29, [0, 1]), (0, [0, 1, 2]), (-20, [0, 1, 2])]
)
def test_the_oldest_go_until_the_rest_fits(size: int, n_free: int, expected: list[int]) -> None:
    assert emptied(APART, n_free, size=size) == expected


def test_what_running_sequences_hold_too_takes_no_room() -> None:
    assert emptied({0: [1, 2, 3], 1: [4]}, 20, running=np.array([1, 2])) == []
    assert emptied({0: [1, 2], 1: [4]}, 0, running=np.array([1, 2])) == [1]


def test_pages_of_several_idle_ones_count_once() -> None:
    assert emptied({0: [1, 2], 1: [1, 2, 3], 2: [7]}, 40) == []
    assert emptied({0: [1, 2], 1: [1, 2, 3], 2: [7]}, 30) == [1]


def test_twins_that_only_free_something_together() -> None:
    assert emptied({0: [1, 2], 1: [1, 2]}, 0) == [0, 1]


def test_running_sequences_stay() -> None:
    assert emptied(APART, 0, busy=(0, 2)) == [1]


@pytest.mark.parametrize(
    ("n_free", "span", "expected"),
    [
        (30, (0, 20), []),  # the pages already belong to the sequence that copies
        (20, (0, 20), [1]),
        (0, (0, 20), [1, 2]),
        (30, (0, 19), [1]),  # it gets a copy of the second page
        (30, (5, 20), [1]),  # and a copy of the first one
        (-1, (0, 20), [1, 2, 0]),
    ],
)
def test_what_somebody_is_about_to_copy_from_goes_last(n_free: int, span: tuple[int, int], expected: list[int]) -> None:
    assert emptied(APART, n_free, copied={0: span}) == expected


@pytest.fixture
def pool() -> Iterator[Engine]:
    engine = GraphEngine(DRAFT, replace(OPTIONS, n_ctx=512, n_seq=3, kv_mode="unified"))
    yield engine
    engine.close()


def asked(executor: Executor, name: str, prompt: list[int], n: int) -> Final:
    request = Request(name, max_tokens=n, ignore_eos=True)
    executor.submit(Submit(1, PEER, request, prompt, MonotonicClock().now_ns()))
    while len(executor.table):
        executor.tick()
    return next(event for event in executor.events if isinstance(event, Final) and event.request_id == name)


def test_a_prompt_begins_with_what_makes_room_for_it(pool: Engine, caplog: pytest.LogCaptureFixture) -> None:
    executor = new_executor(pool)
    executor.set_cache(CacheSettings(is_on=True, ram_bytes=0))

    first, other = list(range(100, 400)), list(range(400, 410))
    asked(executor, "first", first, 2)
    second = asked(executor, "second", first[:200] + other, 250)
    assert second.usage["cached_tokens"] == 200 and second.usage["completion_tokens"] == 250
    assert not caplog.records
    assert not executor.cache.residents[0].n or not executor.cache.residents[1].n, "the rest of the first one made room"
    executor.close(1.0)


def test_a_snapshot_comes_back_beside_what_makes_room_for_it(pool: Engine, caplog: pytest.LogCaptureFixture) -> None:
    executor = new_executor(pool)
    executor.set_cache(CacheSettings(is_on=True, ram_bytes=1 << 30, park_idle_ns=0))
    first, second = list(range(100, 400)), list(range(400, 700))
    asked(executor, "first", first, 2)
    for _ in range(1000):
        executor.idle()
    assert not any(resident.n for resident in executor.cache.residents)
    executor.set_cache(CacheSettings(is_on=True, ram_bytes=1 << 30, park_idle_ns=1 << 60))
    asked(executor, "second", second, 2)
    again = asked(executor, "again", first, 2)
    assert again.usage["cached_tokens"] == 299
    assert not caplog.records
    executor.close(1.0)


def test_what_was_copied_from_makes_room_for_the_rest(pool: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """The request needs the whole pool. Before, the page that it shares with its source was one too many."""
    executor = new_executor(pool)
    executor.set_cache(CacheSettings(is_on=True, ram_bytes=1 << 30, park_idle_ns=1 << 60))
    large = list(range(100, 600))
    asked(executor, "large", large, 12)
    asked(executor, "other", large[:4] + list(range(700, 800)), 10)
    assert asked(executor, "again", large, 12).usage["cached_tokens"] == 499
    assert not caplog.records
    executor.close(1.0)


def test_a_newcomer_waits_for_a_sequence_that_another_one_takes_over(caplog: pytest.LogCaptureFixture) -> None:
    """Both come in one tick. Before, what the newcomer could have had back found no pages, and was read again."""
    with closing(GraphEngine(DRAFT, replace(OPTIONS, n_ctx=512, n_seq=2, kv_mode="unified"))) as engine:
        executor = new_executor(engine)
        executor.set_cache(CacheSettings(is_on=True, ram_bytes=1 << 30, park_idle_ns=1 << 60))
        small, large = list(range(100, 250)), list(range(400, 880))
        asked(executor, "small", small, 2)
        asked(executor, "large", large, 31)
        n_before = engine.slot_warnings()
        executor.submit(
            Submit(1, PEER, Request("again", max_tokens=40, ignore_eos=True), small, MonotonicClock().now_ns())
        )
        asked(executor, "other", list(range(1000, 1300)), 20)
        again = next(event for event in executor.events if isinstance(event, Final) and event.request_id == "again")
        assert again.usage["cached_tokens"] == 149 and again.usage["completion_tokens"] == 40
        assert not caplog.records and engine.slot_warnings() == n_before
        assert asked(executor, "large again", large, 2).usage["cached_tokens"] == 479
        executor.close(1.0)
