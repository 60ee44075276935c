"""Conversations with a cache give the same text as without one: in every memory mode, with small budgets, parking and
restarts.
"""

from __future__ import annotations

import os

import pytest

from tests.cache.asking import SHAPES, model
from tests.cache.world import CELL, Crowd, World, check_idle
from uma_core.cache.settings import CacheSettings

N_TURNS = 60 if os.environ.get("UMA_FUZZ") == "full" else 30


@pytest.mark.fuzz
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ram_tokens", [0, 600, 5000])
def test_texts_are_those_without_a_cache(shape: str, ram_tokens: int) -> None:
    world = World(model(**SHAPES[shape]), CacheSettings(is_on=True, ram_bytes=ram_tokens * CELL))
    crowd = Crowd(world, seed=ram_tokens)
    crowd.live(N_TURNS)
    check_idle(world)
    assert crowd.n_cached > 0 or shape == "no rollback"  # it reuses only a chat's own sequence
