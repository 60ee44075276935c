"""Conversations with a cache give the same text as without: every memory mode, small budgets, parking, restarts."""

from __future__ import annotations

import pytest

from tests.cache_engine.world import CELL, Crowd, World, check_idle
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake import FakeModel

SHAPES = {
    "lanes": {},
    "one lane": {"n_prefill_lanes": 1},
    "chunks": {"n_prefill_lanes": 0},
    "unified": {"n_prefill_lanes": 0, "is_unified": True},
    "no rollback": {"n_prefill_lanes": 0, "can_rollback": False},
}


def model(**fields: object) -> FakeModel:
    return FakeModel(**{"n_seq_max": 3, "n_ctx": 3 * 2048, "n_batch": 256, "n_ubatch": 256, "kv_bytes_per_cell": CELL, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ram_tokens", [0, 600, 5000])
def test_texts_are_those_without_a_cache(shape: str, ram_tokens: int) -> None:
    world = World(model(**SHAPES[shape]), CacheSettings(is_on=True, ram_bytes=ram_tokens * CELL))
    crowd = Crowd(world, seed=ram_tokens)
    crowd.live(60)
    check_idle(world)
    assert crowd.n_cached > 0 or shape == "no rollback"  # there only a chat that goes on in its own sequence gains
