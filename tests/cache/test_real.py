"""After a restored prefix, the real engine's logits are those of a full read, as far as batch shapes allow.

By default a few conversations per model and KV type. `make conversations` runs 200 of each and reports the worst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cache.real import CELL_TOLERANCE, TOLERANCE, RealCrowd, RealWorld, Tally
from tests.engine.conftest import DRAFT, MOE, TARGET
from uma_core.cache.settings import CacheSettings

N_CONVERSATIONS = int(os.environ.get("UMA_CACHE_CONVERSATIONS", "4"))
PIECE = 50  # conversations per test
CASES = [(DRAFT, "f16"), (DRAFT, "q8_0"), (MOE, "f16"), (MOE, "q8_0"), (TARGET, "f16"), (TARGET, "q8_0")]


@pytest.fixture(scope="module")
def tallies() -> Iterator[dict[str, Tally]]:
    found: dict[str, Tally] = {}
    yield found
    for case, tally in found.items():
        print(f"\n{case}: {tally.line}", end="")


@pytest.mark.model
@pytest.mark.parametrize("piece", range(-(-N_CONVERSATIONS // PIECE)))
@pytest.mark.parametrize("path, kv_type", CASES, ids=lambda value: Path(value).stem)
def test_logits_after_a_cached_beginning(
    path: str, kv_type: str, piece: int, tmp_path: Path, tallies: dict[str, Tally]
) -> None:
    world = RealWorld(
        path, kv_type, CacheSettings(is_on=True, ram_bytes=6 << 20, disk_dir=str(tmp_path), disk_bytes=64 << 20)
    )
    try:
        tally = RealCrowd(world, seed=1000 * piece + len(path) + len(kv_type)).live(min(PIECE, N_CONVERSATIONS))
    finally:
        world.close()
    tallies.setdefault(f"{Path(path).stem}, {kv_type} KV", Tally()).add(tally)
    assert max(tally.cached + tally.resumed) <= TOLERANCE, tally.line
    assert max(tally.cells) <= CELL_TOLERANCE, tally.line
