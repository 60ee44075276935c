"""Which sources a prompt's prefix is restored from: the nearest tier first, and nothing behind a gap."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cache.paths import saved, tokens
from uma_core.cache.finder import DISK, RAM, RESIDENT, Finder, Piece
from uma_core.cache.radix import Node, Tree
from uma_core.cache.resident import Resident

SYSTEM, CHAT, LAST = (1, 100), (2, 100), (3, 100)
CELL = 10


class Bench:
    """A finder over sequences; `states`: positions of each at which an engine with states can go on."""

    def __init__(self, states: dict[int, list[int]] | None = None, n_slots: int = 0, **can: bool) -> None:
        self.tree, self.residents = Tree(1), [Resident(seq_id) for seq_id in range(3)]
        capabilities = {"can_copy_prefix": True, "can_rollback": True, "has_states": states is not None, **can}
        info = SimpleNamespace(
            capabilities=SimpleNamespace(**capabilities, n_prefill_slots=n_slots), kv_bytes_per_cell=CELL
        )

        def resumable(seq_id: int, n: int) -> int:
            return max((at for at in (states or {}).get(seq_id, ()) if at <= n), default=0)

        self.finder = Finder(SimpleNamespace(info=info, resumable=resumable), self.residents)  # type: ignore[arg-type]

    def hold(self, seq_id: int, *runs: tuple[int, int]) -> Node:
        ends = tuple(int(n) for n in np.cumsum([n for _, n in runs]))
        self.residents[seq_id].hold(self.tree, tokens(*runs), ends[:-1])
        end = self.residents[seq_id].end
        assert end is not None
        return end

    def lose(self, seq_id: int) -> None:
        self.residents[seq_id].cut(0)

    def route(self, *runs: tuple[int, int], at: int = 0, seq_id: int = 2) -> list[tuple[str, int, int]]:
        wanted = tokens(*runs)
        path, n = self.tree.walk(wanted, len(wanted))
        return [piece[:3] for piece in self.finder.route(path, n, at, seq_id)]


def test_what_a_sequence_holds_comes_first_and_bytes_go_on_from_there() -> None:
    bench = Bench()
    end = bench.hold(0, SYSTEM, CHAT, LAST)
    above = list(end.up())[::-1]
    saved(bench.tree, above[1], 0)
    saved(bench.tree, above[2], 200, file="a")
    bench.hold(1, SYSTEM)
    bench.lose(0)
    assert bench.route(SYSTEM, CHAT, LAST) == [(RESIDENT, 0, 100), (RAM, 100, 200), (DISK, 200, 300)]
    assert bench.route(SYSTEM, CHAT, LAST, at=150) == [(RAM, 150, 200), (DISK, 200, 300)]
    assert bench.route(SYSTEM, CHAT) == [(RESIDENT, 0, 100), (RAM, 100, 200)]


def test_one_snapshot_of_several_nodes_is_one_piece() -> None:
    bench = Bench()
    saved(bench.tree, bench.hold(0, SYSTEM, CHAT), 0)
    bench.lose(0)
    assert bench.route(SYSTEM, CHAT) == [(RAM, 0, 200)]
    assert bench.route(SYSTEM, (2, 50)) == [(RAM, 0, 150)]


def test_nothing_behind_a_gap_is_of_use() -> None:
    bench = Bench()
    end = bench.hold(0, SYSTEM, CHAT, LAST)
    above = list(end.up())[::-1]
    saved(bench.tree, above[0], 0)
    saved(bench.tree, above[2], 200)
    bench.lose(0)
    assert bench.route(SYSTEM, CHAT, LAST) == [(RAM, 0, 100)]


def test_a_snapshot_whose_bytes_are_on_their_way_is_no_source() -> None:
    bench = Bench()
    seg = saved(bench.tree, bench.hold(0, SYSTEM), 0)
    bench.lose(0)
    seg.blob, seg.is_writing = None, True
    assert bench.route(SYSTEM) == []


def test_sequences_that_are_claimed_and_ones_own_are_not_copied_from() -> None:
    bench = Bench()
    bench.hold(0, SYSTEM, CHAT)
    bench.hold(1, SYSTEM)
    assert bench.route(SYSTEM, CHAT) == [(RESIDENT, 0, 200)]
    bench.residents[0].is_claimed = True
    assert bench.route(SYSTEM, CHAT) == [(RESIDENT, 0, 100)]
    assert bench.route(SYSTEM, CHAT, seq_id=1) == []


@pytest.mark.parametrize("can", [{"can_copy_prefix": False}, {"can_rollback": False}])
def test_an_engine_that_cannot_move_parts_restores_none(can: dict[str, bool]) -> None:
    bench = Bench(**can)
    bench.hold(0, SYSTEM)
    assert bench.route(SYSTEM) == []


def test_the_idle_sequence_that_could_keep_the_most_is_found() -> None:
    bench = Bench()
    bench.hold(0, SYSTEM)
    bench.hold(1, SYSTEM, CHAT)
    wanted = tokens(SYSTEM, CHAT, LAST)
    path, n = bench.tree.walk(wanted, len(wanted))
    assert bench.finder.best_in_place(bench.tree, path, n) == (1, 200)
    bench.residents[1].owner = 7
    assert bench.finder.best_in_place(bench.tree, path, n) == (0, 100)
    assert bench.finder.in_place(bench.residents[0], Tree(2), path, n) == 0, "another tenant's"
    bench.residents[0].owner = 8
    assert bench.finder.best_in_place(bench.tree, path, n) == (-1, 0)


def test_a_sequence_that_cannot_be_cut_is_kept_whole_or_not() -> None:
    bench = Bench(can_rollback=False)
    bench.hold(0, SYSTEM, CHAT)
    for runs, kept in (((SYSTEM, CHAT, LAST), 200), ((SYSTEM, LAST), 0)):
        wanted = tokens(*runs)
        path, n = bench.tree.walk(wanted, len(wanted))
        assert bench.finder.in_place(bench.residents[0], bench.tree, path, n) == kept


def test_with_states_pieces_end_where_one_can_go_on() -> None:
    bench = Bench({0: [60], 1: []})
    end = bench.hold(0, SYSTEM, CHAT)
    assert bench.route(SYSTEM, CHAT) == [(RESIDENT, 0, 60)]
    assert bench.finder.copyable(bench.residents[0], 100) == 60
    assert not bench.finder.can_end(bench.residents[0], 100) and bench.finder.can_end(bench.residents[0], 60)
    seg = saved(bench.tree, end, 0)
    bench.lose(0)
    assert bench.route(SYSTEM, CHAT) == []
    seg.has_state = True
    assert bench.route(SYSTEM, CHAT) == [(RAM, 0, 200)]
    assert bench.route(SYSTEM, (2, 50)) == [], "the state is that of another position"


def test_with_states_what_others_can_give_ends_at_theirs() -> None:
    bench = Bench({0: [90, 200]})
    end = bench.hold(0, SYSTEM, CHAT)
    assert bench.finder.given(end, 30, 2) == 90
    assert bench.finder.given(end, 95, 2) == 95
    assert bench.finder.given(end, 30, 0) == 30, "its own cells are no source"
    assert Bench().finder.given(end, 30, 2) == 100


def test_the_cost_counts_what_is_moved_and_the_disk_and_a_slots_own_copy() -> None:
    cost: Any = SimpleNamespace(transfer_ns=lambda n_bytes: 3 * n_bytes)
    pieces = [Piece(RAM, 50, 100, Resident(0)), Piece(DISK, 100, 120, Resident(0))]
    bench = Bench()
    bench.finder.disk_ns_per_byte = 7.0
    assert bench.finder.cost_ns(pieces, 120, cost) == 3 * 70 * CELL + 7 * 20 * CELL
    with_slots = Bench(n_slots=1)
    assert with_slots.finder.cost_ns([], 120, cost) == 3 * 120 * CELL
