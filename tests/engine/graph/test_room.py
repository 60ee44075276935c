"""One pool of pages for all sequences: pages that running sequences share are reserved once, and no sequence runs out
of reserved pages.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.engine.conftest import DRAFT
from tests.engine.drive import finish, read_plain, tokens_of
from tests.engine.graph.conftest import SMALL
from tests.executor.rig import new_executor
from uma_core.cache.settings import CacheSettings
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.graph.store import PAGE
from uma_core.executor.admission import Limits
from uma_core.executor.residency import residency
from uma_core.executor.view import take
from uma_core.session.events import Final, Submit
from uma_core.types import FinishReason, Peer, Phase, Request

N_SEQ, N_PAGES = 6, 16
OPTIONS = replace(SMALL, n_seq=N_SEQ, n_ctx=N_PAGES * PAGE, kv_mode="unified", threads=1)


class Pool:
    """An executor over a graph engine with one pool of pages."""

    def __init__(self) -> None:
        self.engine = GraphEngine(DRAFT, OPTIONS)
        self.open()

    def open(self) -> None:
        """Return a new executor over the engine with all sequences empty."""
        for seq_id in range(N_SEQ):
            self.engine.kv_truncate(seq_id, 0)
        self.executor = new_executor(self.engine, Limits(max_sessions=100, queue=(100, 100)))
        self.executor.set_cache(CacheSettings(is_on=True, ram_bytes=1 << 24))
        self.n_running = self.n_full = 0
        self.reasons: dict[str, FinishReason] = {}

    def ask(self, name: str, tokens: list[int], n: int, **fields: object) -> None:
        request = Request(name, tokens=tuple(tokens), max_tokens=n, ignore_eos=True, **fields)  # type: ignore[arg-type]
        self.executor.submit(Submit(1, Peer(1, 1, 1), request, tokens, 0))

    def tick(self) -> None:
        self.executor.tick()
        running = [s for s in self.executor.table if s.seq_id >= 0]
        self.n_running = max(
            self.n_running, len(running)
        )  # the most so far: the clock decides who reads while others decode
        self.n_full += any(s.n_full for s in running)
        while self.executor.events:
            event = self.executor.events.popleft()
            if isinstance(event, Final):
                self.reasons[event.request_id] = event.reason

    def run(self) -> None:
        while len(self.executor.table):
            self.tick()

    def until_streaming(self, n: int) -> None:
        """Tick until this many requests decode at the same time."""
        while sum(s.phase is Phase.DECODE for s in self.executor.table) < n:
            assert len(self.executor.table) >= n, "one of them ended before"
            self.tick()


@pytest.fixture(scope="module")
def engine_pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.engine.close()


@pytest.fixture
def pool(engine_pool: Pool) -> Pool:
    engine_pool.open()
    return engine_pool


def text(n: int, seed: int) -> list[int]:
    return [random.Random(seed).randrange(32, 127) for _ in range(n)]


def test_pages_of_a_prefix_are_the_same_ones(pool: Pool) -> None:
    engine = pool.engine
    read_plain(engine, 0, tokens_of(engine, 200))
    finish(engine.copy_prefix(0, 1, 150))
    assert engine.kv_pages(0, 200).tolist() == [*engine.kv_pages(1, 150), engine.kv_pages(0, 200)[3]]
    assert len(engine.kv_pages(1, 128)) == 2 and len(engine.kv_pages(2, 100)) == 0
    assert engine.info.kv_page == PAGE


def test_who_shares_a_prefix_comes_in_where_copies_would_not_fit(pool: Pool) -> None:
    """Five times 7 pages are reserved of 16: six of each 7 are the same pages, once the prefix is there."""
    prefix = text(6 * PAGE, 1)
    pool.ask("first", prefix + text(3, 2), 60)
    pool.until_streaming(1)
    for i in range(4):
        pool.ask(f"more {i}", prefix + text(3, 3 + i), 60)
    pool.run()
    assert pool.n_running >= 3
    assert set(pool.reasons.values()) == {FinishReason.LENGTH} and len(pool.reasons) == 5


def test_who_shares_nothing_waits(pool: Pool) -> None:
    for i in range(4):
        pool.ask(f"own {i}", text(6 * PAGE + 3, i), 40)
    pool.run()
    assert pool.n_running == 2 and set(pool.reasons.values()) == {FinishReason.LENGTH}


def test_short_sessions_reserve_whole_pages(pool: Pool) -> None:
    """Six times 150 cells are fewer than 16 pages; six times three pages are more."""
    for i in range(N_SEQ):
        pool.ask(f"short {i}", text(100, i), 50)
    pool.run()
    assert pool.n_running <= 5 and pool.n_full == 0


def test_residency_counts_whole_pages_that_are_computed(pool: Pool) -> None:
    prefix = text(3 * PAGE, 1)
    pool.ask("first", prefix + text(20, 2), 300)
    pool.until_streaming(1)
    pool.ask(
        "second", prefix + text(3, 3), 60
    )  # few tokens, because the clock decides how soon they are read beside the first one
    pool.until_streaming(2)
    there = residency(pool.engine, pool.executor.table)
    assert there.n_saved == 3 * PAGE and sorted(there.shared)[-2:] == [3 * PAGE] * 2
    kv = take(pool.executor, 0).kv
    assert kv["reserved"] == pool.executor.table.n_cells_reserved - 3 * PAGE and kv["used"] <= kv["reserved"]
    first = next(s for s in pool.executor.table if s.id == "first")
    first.is_shifting = True  # it will read its context again, into its own pages
    assert residency(pool.engine, pool.executor.table).n_saved == 0
    first.is_shifting = False
    pool.run()


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(60 if os.environ.get("UMA_FUZZ") == "full" else 3))
def test_nobody_runs_out_of_what_was_reserved(pool: Pool, seed: int) -> None:
    """Random requests with a common prefix, some of them cancelled: all others get all their tokens."""
    rng = random.Random(seed)
    beginnings = [text(n, n) for n in (70, 3 * PAGE, 330, 6 * PAGE + 1)]
    cancelled = set()
    for i in range(40):
        prompt = rng.choice(beginnings)[: rng.choice([50, 64, 200, 1000])] + text(rng.randint(1, 150), 1000 * seed + i)
        overflow = rng.choice(["error", "error", "error", "shift"])
        pool.ask(f"r{i}", prompt, rng.randint(1, 90), overflow=overflow)
        for _ in range(rng.randint(0, 12)):
            pool.tick()
        if rng.random() < 0.15:
            cancelled.add(f"r{i}")
            pool.executor.cancel(1, f"r{i}")
    pool.run()
    pool.tick()
    assert len(pool.reasons) == 40
    assert {pool.reasons[name] for name in pool.reasons.keys() - cancelled} == {FinishReason.LENGTH}
