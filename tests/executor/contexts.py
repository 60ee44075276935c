"""A daemon of short contexts, and prompts for them."""

from __future__ import annotations

from tests.cache.world import World
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake.engine import FakeModel

N_CTX = 256


def world(**fields: object) -> World:
    limits = fields.pop("limits", None)
    return World(
        FakeModel(**{"n_seq_max": 2, "n_ctx": 2 * N_CTX, **fields}), CacheSettings(is_on=True, ram_bytes=10**8), limits
    )  # type: ignore[arg-type]


def text(n: int, first: int = 1) -> list[int]:
    return [first, *(97 + i * i % 26 for i in range(1, n))]
