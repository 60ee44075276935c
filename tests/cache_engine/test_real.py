"""After a restored beginning the real engine's logits are those of a full read, as far as batch shapes allow.

By default a few dozen conversations per model and KV type; `UMA_CACHE_TURNS=1000` makes it a thousand each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cache_engine.real import TOLERANCE, RealCrowd, RealWorld
from tests.engine.conftest import DRAFT, MOE, TARGET
from uma_core.cache.settings import CacheSettings

N_TURNS = int(os.environ.get("UMA_CACHE_TURNS", "20"))
CASES = [(DRAFT, "f16"), (DRAFT, "q8_0"), (MOE, "f16"), (MOE, "q8_0"), (TARGET, "f16"), (TARGET, "q8_0")]


@pytest.mark.model
@pytest.mark.parametrize("path, kv_type", CASES, ids=lambda value: Path(value).stem)
def test_logits_after_a_cached_beginning(path: str, kv_type: str, tmp_path: Path) -> None:
    world = RealWorld(path, kv_type, CacheSettings(is_on=True, ram_bytes=6 << 20, disk_dir=str(tmp_path), disk_bytes=64 << 20))
    try:
        crowd = RealCrowd(world, seed=len(path) + len(kv_type))
        crowd.live(N_TURNS)
        print(
            f"{Path(path).stem} {kv_type}: {crowd.n_ended} turns, {crowd.n_cached} of {crowd.n_prompt} prompt tokens cached, "
            f"{len(crowd.deviations)} compared, worst deviation {max(crowd.deviations):.4f} of std"
        )
        assert len(crowd.deviations) > N_TURNS / 3
        assert max(crowd.deviations) <= TOLERANCE
    finally:
        world.close()
