"""The `cache` operation: list, clear, pin, unpin, stats. Runs on the compute thread."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from uma_core.cache.finder import DISK, RAM, RESIDENT
from uma_core.cache.manager import PRIVATE, PrefixCache, clear
from uma_core.cache.radix import Node, Tree
from uma_core.cache.segment import segments_of
from uma_core.errors import ErrorCode, UmaError


def cache_admin(cache: PrefixCache, args: dict[str, Any]) -> dict[str, Any]:
    """Carry out one action; returns the reply's fields. Raises: NOT_FOUND, BAD_REQUEST."""
    return _ACTIONS[args.get("action") or "stats"](cache, args.get("key"))


def _list(cache: PrefixCache, key: str | None) -> dict[str, Any]:
    now = cache.clock.now_ns()
    return {"entries": [_entry(cache, tree, node, now) for tree, node in _leaves(cache)]}


def _entry(cache: PrefixCache, tree: Tree, node: Node, now: int) -> dict[str, Any]:
    path = list(node.up())
    segs = segments_of(path)
    used = [cache.residents[seq].t_used for seq in node.holders]
    return {
        "key": _key(node),
        "uid": tree.tenant,
        "adapters": tree.variant,
        "tokens": node.end,
        "sequences": sorted(node.holders),
        "running": any(cache.residents[seq].owner for seq in node.holders),
        "ram_bytes": sum(seg.n_bytes for seg in segs if seg.blob is not None),
        "disk_bytes": sum(seg.n_bytes for seg in segs if seg.file),
        "pinned": node.is_pinned,
        "idle_ms": round((now - max(used)) / 1e6) if used else None,
    }


def _clear(cache: PrefixCache, key: str | None) -> dict[str, Any]:
    if key is None:
        return {"cleared": clear(cache)}
    _, leaf = _find(cache, key)
    if leaf.is_pinned:
        _unpin(cache, key)
    own = list(
        itertools.takewhile(lambda node: not node.n_kept and (node is leaf or len(node.children) == 1), leaf.up())
    )
    if not own or leaf.children:
        return {"cleared": 0}
    start = own[-1].start  # the part before it also belongs to other sequences
    n_cleared = sum(cache.drop_idle(cache.residents[seq_id], start) for seq_id in list(leaf.holders))
    for seg in [seg for seg in segments_of(own) if seg.start >= start]:
        cache.store.forget(seg, "cleared")
        n_cleared += 1
    return {"cleared": n_cleared}


def _pin(cache: PrefixCache, key: str | None) -> dict[str, Any]:
    _, node = _find(cache, key)
    if not node.is_pinned:
        node.is_pinned = True
        node.keep()
    return {}


def _unpin(cache: PrefixCache, key: str | None) -> dict[str, Any]:
    tree, node = _find(cache, key)
    if node.is_pinned:
        node.is_pinned = False
        tree.unkeep(node)
    return {}


def _stats(cache: PrefixCache, key: str | None) -> dict[str, Any]:
    store, meters, cell = cache.store, cache.meters, cache.finder.cell_bytes
    held = {h.seq_id: h.n for h in cache.residents if h.n}
    tenants: dict[int, dict[str, int]] = {}
    for resident in cache.residents:
        if resident.n and resident.tree is not None and resident.tree.tenant > PRIVATE:
            _add(tenants, resident.tree.tenant, "resident_bytes", resident.n * cell)
    for tenant, n_bytes in store.ram.by_tenant.items():
        _add(tenants, tenant, "ram_bytes", n_bytes)
    for n_bytes, seg in store.files.values():
        _add(tenants, seg.tree.tenant if seg is not None else PRIVATE, "disk_bytes", n_bytes)
    hits = {tier: int(counter.value) for tier, counter in meters.hits.items()}
    n_looked = sum(hits.values()) + int(meters.misses.value)
    disk = store.disk
    stats: dict[str, Any] = {
        "is_on": cache.settings.is_on,
        "entries": len(_leaves(cache)),
        "hits": hits,
        "misses": int(meters.misses.value),
        "hit_ratio": round(sum(hits.values()) / n_looked, 4) if n_looked else None,
        "tokens_saved": {tier: int(counter.value) for tier, counter in meters.saved.items()},
        "evictions": {tier: int(counter.value) for tier, counter in meters.evictions.items()},
        RESIDENT: {"sequences": held, "bytes": sum(held.values()) * cell},
        RAM: {"bytes": store.ram.n_bytes, "budget": store.ram.budget, "snapshots": store.ram.n_segments},
        DISK: {"bytes": store.disk_bytes, "budget": store.disk_budget if disk else 0, "files": len(store.files)},
        "tenants": {str(tenant): values for tenant, values in sorted(tenants.items())},
    }
    if disk is not None:
        stats[DISK] |= {"directory": disk.folder, "is_writing": disk.can_write, "last_error": disk.last_error}
    return {"stats": stats}


def _add(tenants: dict[int, dict[str, int]], tenant: int, name: str, n_bytes: int) -> None:
    row = tenants.setdefault(tenant, {"resident_bytes": 0, "ram_bytes": 0, "disk_bytes": 0})
    row[name] += n_bytes


def _key(node: Node) -> str:
    return f"{node.id:x}"


def _leaves(cache: PrefixCache) -> list[tuple[Tree, Node]]:
    trees = [tree for tree in cache.trees.values() if tree.tenant > PRIVATE]
    return [(tree, node) for tree in trees for node in tree.nodes() if not node.children or node.is_pinned]


def _find(cache: PrefixCache, key: str | None) -> tuple[Tree, Node]:
    if key is None:
        raise UmaError(ErrorCode.BAD_REQUEST, "this action needs a key", field="key")
    for tree in cache.trees.values():
        for node in tree.nodes():
            if _key(node) == key:
                return tree, node
    raise UmaError(ErrorCode.NOT_FOUND, f"no cache entry {key}")


_ACTIONS: dict[str, Callable[[PrefixCache, str | None], dict[str, Any]]] = {
    "list": _list,
    "clear": _clear,
    "pin": _pin,
    "unpin": _unpin,
    "stats": _stats,
}
