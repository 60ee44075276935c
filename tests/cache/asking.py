"""Small worlds, and texts to send to them, which the tests of the cache share."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import uma_core.metrics.catalog as m
from tests.cache.world import CELL, World
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake.engine import FakeModel
from uma_core.types import Phase, Priority

SHAPES = {
    "prefill slots": {},
    "one prefill slot": {"n_prefill_slots": 1},
    "chunks": {"n_prefill_slots": 0},
    "unified": {"n_prefill_slots": 0, "is_unified": True},
    "no rollback": {"n_prefill_slots": 0, "can_rollback": False},
}


def model(**fields: object) -> FakeModel:
    return FakeModel(
        **{"n_seq_max": 3, "n_ctx": 3 * 2048, "n_batch": 256, "n_ubatch": 256, "kv_bytes_per_cell": CELL, **fields}
    )  # type: ignore[arg-type]


ON = CacheSettings(is_on=True, ram_bytes=20_000 * CELL)


def settings(folder: Path, **fields: object) -> CacheSettings:
    return CacheSettings(
        **{"is_on": True, "ram_bytes": 10**7, "disk_dir": str(folder / "kv"), "disk_bytes": 10**7, **fields}
    )  # type: ignore[arg-type]


def text(n: int, seed: int = 0) -> list[int]:
    """Texts of different seeds differ from the first token on."""
    return [1 + seed, *random.Random(seed).choices(range(97, 123), k=n - 1)]


def world(settings: CacheSettings = ON, **fields: object) -> World:
    limits = fields.pop("limits", None)
    return World(model(**fields), settings, limits)  # type: ignore[arg-type]


def computed(w: World) -> int:
    return int(w.registry.counter(m.PREFILL_TOKENS).value)


def until(w: World, condition: Callable[[], bool], n_most: int = 20_000) -> None:
    for _ in range(n_most):
        if condition():
            return
        w.tick()
        w.check()
    raise AssertionError("it never came")


def park_one(w: World) -> None:
    """A background stream has the only sequence, and a chat needs it."""
    w.submit("work", text(500), max_tokens=60, priority=Priority.BACKGROUND)
    until(w, lambda: len(w.texts.get("work", "")) >= 10)
    w.submit("chat", text(40, 1), max_tokens=10, priority=Priority.INTERACTIVE)
    until(w, lambda: any(s.phase is Phase.PARKED for s in w.executor.table))
