"""The cache's metrics, looked up in the registry once."""

from __future__ import annotations

from uma_core.cache.finder import TIERS
from uma_core.engine.api import Transfer
from uma_core.metrics import catalog as m


class CacheMeters:
    def __init__(self, registry: m.Registry) -> None:
        self.hits = {tier: registry.counter(m.CACHE_HITS, tier=tier) for tier in TIERS}
        self.misses = registry.counter(m.CACHE_MISSES)
        self.saved = {tier: registry.counter(m.CACHE_TOKENS_SAVED, tier=tier) for tier in TIERS}
        self.evictions = {tier: registry.counter(m.CACHE_EVICTIONS, tier=tier) for tier in TIERS}
        self.removed = {
            cause: registry.counter(m.CACHE_FILES_REMOVED, cause=cause)
            for cause in m.CACHE_FILES_REMOVED.labels["cause"]
        }
        self.bytes = {tier: registry.gauge(m.CACHE_BYTES, tier=tier) for tier in TIERS}
        self.kv_bytes = registry.counter(m.KV_BYTES)
        self.kv_copied = registry.counter(m.KV_COPIED_BYTES)
        self.restore = {tier: registry.histogram(m.CACHE_RESTORE, tier=tier) for tier in TIERS}

    def copied(self, transfer: Transfer) -> Transfer:
        """Count a transfer's bytes, and return it."""
        self.kv_copied.add(transfer.n_bytes)
        return transfer
