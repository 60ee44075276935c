"""What the cache drops, in order, if memory is short. Running streams and parked sessions lose nothing."""

from __future__ import annotations

from uma_core.cache.manager import PrefixCache


def trim_snapshots(cache: PrefixCache) -> int:
    """Drop half of the RAM tier's bytes, the cheapest to recompute first. Returns the bytes dropped."""
    ram = cache.store.ram
    return ram.shrink(ram.n_bytes - ram.n_bytes // 2)


def drop_idle(cache: PrefixCache) -> int:
    """Empty the sequences that no request uses. Returns the bytes of KV that they held."""
    held = [(resident.n, resident) for resident in cache.residents]
    return sum(n for n, resident in held if cache.drop_idle(resident)) * cache.finder.cell_bytes


def forget(cache: PrefixCache) -> None:
    """Release the bytes of a retired engine's cache now, rather than at the next garbage collection."""
    for tree in cache.trees.values():
        for node in tree.nodes():
            if node.seg is not None:
                node.seg.blob = None
    cache.trees.clear()
