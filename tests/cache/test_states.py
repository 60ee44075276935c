"""Conversations with recurrent models over the real engine: what follows a restored beginning has the bits of a full
read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cache.real import RealCrowd, RealWorld, Tally
from tests.engine.drive import read, step
from tests.engine.graph.models import RECURRENT, write
from uma_core.cache.settings import CacheSettings
from uma_core.config.options import EngineOptions
from uma_core.engine.graph.engine import GraphEngine

N_CONVERSATIONS = 30
N_SYSTEM = (60, 150, 280)  # RealCrowd's instructions


class StateWorld(RealWorld):
    """With an engine whose logits have the same bits in any company: nothing is allowed for."""

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


@pytest.mark.model
@pytest.mark.parametrize("ram_bytes", [0, 64 << 20], ids=["sequences alone", "RAM"])
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "granitehybrid", "lfm2"])
def test_what_follows_a_cached_beginning_has_the_bits_of_a_full_read(name: str, ram_bytes: int, tmp_path: Path) -> None:
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
