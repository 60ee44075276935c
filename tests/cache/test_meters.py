"""The cache's metrics: one of each for every tier."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from uma_core.cache.finder import TIERS
from uma_core.cache.meters import CacheMeters
from uma_core.metrics import catalog as m


def test_every_tier_is_counted_from_the_start() -> None:
    """A scraper sees zeros rather than nothing, so that a rate can be computed from the first hit."""
    registry = m.new_registry()
    CacheMeters(registry)
    for tier in TIERS:
        for metric in (m.CACHE_HITS, m.CACHE_TOKENS_SAVED, m.CACHE_EVICTIONS):
            assert registry.counter(metric, tier=tier).value == 0


def test_a_transfer_is_counted_by_its_bytes() -> None:
    registry = m.new_registry()
    transfer: Any = SimpleNamespace(n_bytes=700)
    meters = CacheMeters(registry)
    assert meters.copied(transfer) is transfer and meters.copied(transfer) is transfer
    assert registry.counter(m.KV_COPIED_BYTES).value == 1400
