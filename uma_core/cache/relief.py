"""Memory is short: what the cache gives up, in order. Running streams and parked sessions lose nothing."""

from __future__ import annotations

from uma_core.cache.manager import PrefixCache


def trim_snapshots(cache: PrefixCache) -> int:
    """Drop half of the bytes of the RAM tier, the cheapest to make again first. Returns the bytes dropped."""
    ram = cache.store.ram
    return ram.shrink(ram.n_bytes - ram.n_bytes // 2)


def drop_idle(cache: PrefixCache) -> int:
    """Empty the sequences that no request uses. Returns the bytes of KV that they held."""
    held = [(holding.n, holding) for holding in cache.holdings]
    return sum(n for n, holding in held if cache.drop_idle(holding)) * cache.finder.cell_bytes


def forget(cache: PrefixCache) -> None:
    """The engine has retired and the cache is closed: let go of its bytes now, not when a garbage collection finds
    them.
    """
    for tree in cache.trees.values():
        for node in tree.nodes():
            if node.seg is not None:
                node.seg.blob = None
    cache.trees.clear()
