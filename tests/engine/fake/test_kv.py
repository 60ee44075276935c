"""The FakeEngine's memory: what sequences hold, and transfers that take their time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from uma_core.clock import ManualClock
from uma_core.engine.fake.kv import (
    MAGIC,
    SLICE_NS,
    TOKEN_BITS,
    FakeExport,
    FakeKV,
    FakeTransfer,
    blob_of,
    entry_of,
    tokens_of_blob,
)
from uma_core.engine.fake.text import START, advance


def test_the_hash_is_that_of_what_is_held() -> None:
    kv = FakeKV(2, 100, 100, False)
    after = [kv.append(0, token) for token in (5, 6, 7)]
    assert after[0] == advance(START, 5) and kv.peek(1, [5, 6, 7]) == after[2]
    kv.truncate(0, 1)
    assert kv.n(0) == 1 and kv.tokens(0) == [5] and kv.append(0, 6) == after[1]
    kv.truncate(0, 0)
    assert kv.append(0, 5) == after[0]


def test_a_streams_cells_are_its_own_and_a_pools_are_shared() -> None:
    for is_unified, has_room in ((False, True), (True, False)):
        kv = FakeKV(2, 10, 8, is_unified)
        for token in range(6):
            kv.append(0, token)
        assert kv.has_room({1: 5}) == has_room
        assert kv.has_room({0: 2, 1: 2}) and not kv.has_room({0: 3})


def test_entries_with_adapters_are_none_without() -> None:
    assert entry_of(65, ()) == 65
    one, other = entry_of(65, (("a", 1.0),)), entry_of(65, (("a", 0.5),))
    assert len({65, one, other}) == 3 and one % (1 << TOKEN_BITS) == 65


@pytest.mark.parametrize("tokens", [[], [1], [0, 257, 1 << 29]])
def test_a_snapshot_comes_back(tokens: list[int]) -> None:
    assert tokens_of_blob(blob_of(tokens)) == tokens


@pytest.mark.parametrize("blob", [b"", b"OTHERKV1" + bytes(8), MAGIC + b"abc", MAGIC[:-1]])
def test_other_bytes_are_none(blob: bytes) -> None:
    assert tokens_of_blob(blob) is None


class Bench:
    """A transfer of n bytes, each 1 us."""

    def __init__(self, n_bytes: int) -> None:
        self.clock, self.log = ManualClock(0), []
        cost = SimpleNamespace(copy_ns=lambda n: 1000 * n)
        self.engine: Any = SimpleNamespace(clock=self.clock, cost=cost, elapse=lambda ns: self.clock.advance(int(ns)))
        self.transfer = FakeTransfer(
            self.engine, n_bytes, lambda: self.log.append("finished"), lambda: self.log.append("undone")
        )


def test_a_transfer_goes_on_in_slices_and_finishes_once() -> None:
    bench = Bench(1000)
    assert not bench.transfer.step(SLICE_NS) and bench.clock.now_ns() == SLICE_NS and not bench.log
    assert bench.transfer.step(1 << 40) and bench.clock.now_ns() == 1_000_000
    assert bench.transfer.step(0)
    bench.transfer.close()
    assert bench.log == ["finished"]


def test_a_transfer_that_is_given_up_is_undone_once() -> None:
    bench = Bench(1000)
    bench.transfer.step(SLICE_NS)
    bench.transfer.close()
    bench.transfer.close()
    assert bench.log == ["undone"]


def test_a_snapshot_is_empty_until_it_is_whole() -> None:
    bench = Bench(0)
    export = FakeExport(bench.engine, 1000, b"content")
    assert not export.step(SLICE_NS) and export.blob == b""
    assert export.step(1 << 40) and export.blob == b"content"
