"""Conversations with recurrent models over the real engine: the logits after a restored prefix have the bits of a full
read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cache.real import RealCrowd, RealWorld, Tally, Turn
from tests.engine.drive import read, step
from tests.engine.graph.models import RECURRENT, write
from uma_core.cache.resident import Resident
from uma_core.cache.settings import CacheSettings
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Transfer
from uma_core.engine.graph.engine import GraphEngine
from uma_core.errors import ErrorCode
from uma_core.types import FinishReason

N_CONVERSATIONS = 30 if os.environ.get("UMA_FUZZ") == "full" else 10
N_SYSTEM = (60, 150, 280)  # lengths of RealCrowd's instructions


class StateWorld(RealWorld):
    """A world with an engine whose logits have the same bits in any company, so no deviation is allowed."""

    def new_engine(self, options: EngineOptions) -> Any:
        return GraphEngine(self.path, options)

    def ends(self, prompt: list[int]) -> tuple[int, ...]:
        return tuple(n for n in (*N_SYSTEM, len(prompt) - 3) if 0 < n < len(prompt))

    def cells(self, engine: Any, seq_id: int, n: int) -> np.ndarray:
        return np.zeros(1)

    def worst_cell(self, tokens: list[int], cells: np.ndarray) -> float:
        return 0.0

    def noise(self, tokens: list[int], cut: int) -> float:
        return 0.0

    def deviation(self, tokens: list[int], logits: np.ndarray, n_cached: int = 0) -> tuple[float, bool]:
        self.plain.kv_truncate(0, 0)
        read(self.plain, 0, np.array(tokens[:-1], np.int32), False)
        step(self.plain, [(0, tokens[-1])])
        return float(np.abs(self.plain.logits(0) - logits).max()), False


@pytest.mark.fuzz
@pytest.mark.model
@pytest.mark.parametrize("ram_bytes", [0, 64 << 20], ids=["sequences alone", "RAM"])
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "granitehybrid", "lfm2"])
def test_what_follows_a_cached_beginning_has_the_bits_of_a_full_read(
    name: str, ram_bytes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = tmp_path / "cache"
    files.mkdir()
    settings = CacheSettings(is_on=True, ram_bytes=ram_bytes, disk_dir=str(files), disk_bytes=64 << 20)
    world = StateWorld(write(RECURRENT[name], tmp_path / "model.gguf"), "f16", settings)
    try:
        tally: Tally = RealCrowd(world, seed=len(name) + ram_bytes).live(N_CONVERSATIONS)
    finally:
        world.close()
    assert tally.cached, tally.line
    assert max(tally.cached + tally.resumed) == 0.0, tally.line
    assert not any(files.iterdir())  # states are not kept on disk
    assert ErrorCode.BAD_BATCH.code not in caplog.text


def test_a_source_that_goes_on_before_it_is_copied_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the newcomer's old sequence is saved, other calls are made, so the state that was found may be gone."""
    settings = CacheSettings(is_on=True, ram_bytes=0)
    world = StateWorld(write(RECURRENT["lfm2"], tmp_path / "model.gguf"), "f16", settings)
    try:
        cache, engine = world.executor.cache, world.engine
        first = Turn("first", list(range(32, 92)))
        world.submit(first, 4, None)
        while len(world.executor.table):
            world.tick()
        source = next(resident for resident in cache.residents if resident.n)
        assert source.n == engine.kv_len(source.seq_id) > len(first.prompt)
        branch = Turn("branch", [*first.prompt, *world.tokens["first"][:3], 40, 41, 42])

        def vacate(resident: Resident, at: int) -> Iterator[Transfer]:
            read(engine, source.seq_id, np.array([50], np.int32), False)
            return iter(())

        other = next(resident.seq_id for resident in cache.residents if resident is not source)
        monkeypatch.setattr(cache.finder, "best_in_place", lambda *args: (other, 0))
        monkeypatch.setattr(cache, "_vacate", vacate)
        world.submit(branch, 4, None)
        while len(world.executor.table):
            world.tick()
        world.collect()
    finally:
        world.close()
    assert branch.reason is FinishReason.LENGTH
    assert branch.n_cached == len(first.prompt) - 1, "that state was kept"
    assert not [r for r in caplog.records if r.name.startswith("uma_core") and r.levelno >= logging.WARNING]


@pytest.mark.parametrize("n_common", [50, 60, 63, 90, 200])
def test_a_snapshot_has_the_beginning_that_others_hold_and_cannot_give(n_common: int, tmp_path: Path) -> None:
    """A beginning can be copied only up to a position whose state was kept, and chats part where there is none."""
    settings = CacheSettings(is_on=True, ram_bytes=64 << 20)
    world = StateWorld(write(RECURRENT["lfm2"], tmp_path / "model.gguf"), "f16", settings)
    common = [32 + i % 64 for i in range(n_common)]

    def next_of(name: str) -> Turn:
        return Turn(f"next of {name}", [*world.turns[name].prompt, *world.tokens[name], 40, 41])

    def answer(*turns: Turn) -> None:
        for turn in turns:
            world.submit(turn, 4, None)
        while any(turn.reason is None for turn in turns):
            world.tick()
            world.collect()

    try:
        chats = [Turn(name, [*common, *range(first, first + 60)]) for name, first in (("one", 100), ("two", 170))]
        answer(*chats, Turn("longer", [231] * 400))
        answer(Turn("newcomer", [232] * 400))  # takes the first chat's sequence
        running, turn = next_of("two"), next_of("one")
        world.submit(running, 500, None)
        while len(world.tokens.get(running.request_id, ())) < 2:
            world.tick()
        answer(turn)
        assert running.reason is None, "its sequence is not free"
        assert turn.n_cached == len(chats[0].prompt) + 3  # the last token of an answer is not read
        assert turn.logits is not None
        assert world.deviation(turn.prompt, turn.logits) == (0.0, False)
    finally:
        world.close()


def test_an_idle_sequence_drives_no_other_snapshot_out_for_its_state(tmp_path: Path) -> None:
    """A state weighs as much as hundreds of positions, and counts where room is looked for."""
    settings = CacheSettings(is_on=True, ram_bytes=1 << 40, park_idle_ns=1)
    world = StateWorld(write(RECURRENT["qwen35"], tmp_path / "model.gguf"), "f16", settings)
    try:
        for name, first in (("one", 32), ("two", 132)):
            world.submit(Turn(name, list(range(first, first + 60))), 4, None)
            while len(world.executor.table):
                world.tick()
            while world.executor.idle() == 0.0:
                pass
            if name == "one":
                ram = world.executor.cache.store.ram
                assert ram.n_segments == 1
                ram.budget = 2 * ram.n_bytes - 1
        assert (ram.n_segments, [h.n for h in world.executor.cache.residents if h.n]) == (1, [63])
        assert world.executor.cache.meters.evictions["ram"].value == 0
    finally:
        world.close()
