"""What the operation `cache` lists, clears, pins and counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cache.asking import model, settings, text, until
from tests.cache.world import CELL, COST, World, answer, check_idle
from uma_core.cache.admin import cache_admin
from uma_core.cache.settings import CacheSettings


def test_list_pin_clear(tmp_path: Path) -> None:
    w = World(model(n_seq_max=1, n_ctx=2048), settings(tmp_path, ram_bytes=700 * CELL))
    w.ask("a", text(300, 1))
    (entry,) = cache_admin(w.cache, {"action": "list"})["entries"]
    assert entry["tokens"] == 307 and entry["uid"] == 1 and entry["sequences"] == [0] and not entry["running"]
    cache_admin(w.cache, {"action": "pin", "key": entry["key"]})
    for i in range(2, 6):
        w.ask(f"r{i}", text(300, i))
    entries = {e["key"]: e for e in cache_admin(w.cache, {"action": "list"})["entries"]}
    assert entries[entry["key"]]["pinned"] and entries[entry["key"]]["ram_bytes"] == 307 * CELL
    w.ask("a2", text(300, 1))
    assert w.cached("a2") == 299
    w.check()
    cache_admin(w.cache, {"action": "unpin", "key": entry["key"]})
    assert cache_admin(w.cache, {"action": "clear"})["cleared"] >= 3
    w.check()
    assert cache_admin(w.cache, {"action": "list"})["entries"] == []
    assert w.cache.store.ram.n_bytes == 0 and w.engine.kv_len(0) == 0
    w.ask("a3", text(300, 1))
    assert w.cached("a3") == 0
    check_idle(w)


def test_clear_one_entry_leaves_what_others_need() -> None:
    w = World(model(), CacheSettings(is_on=True, ram_bytes=10**7))
    system = text(200)
    w.ask("a", system + text(100, 1))
    w.ask("b", system + text(100, 2))
    keys = [e["key"] for e in cache_admin(w.cache, {"action": "list"})["entries"]]
    assert len(keys) == 2
    assert cache_admin(w.cache, {"action": "clear", "key": keys[0]})["cleared"] >= 1
    w.check()
    cached = []
    for name, seed in (("a2", 1), ("b2", 2)):
        w.ask(name, system + text(100, seed))
        cached.append(w.cached(name))
    assert sorted(cached) == [200, 299]


@pytest.mark.parametrize("mover", ["newcomer", "idle time", "room"])
def test_what_is_being_saved_during_a_clear_is_gone_too(tmp_path: Path, mover: str) -> None:
    """Before, its snapshot was finished and written, and found again by the next start."""
    shape = {"n_seq_max": 2, "n_ctx": 640, "is_unified": True} if mover == "room" else {"n_seq_max": 1}
    idle_ns = 0 if mover == "idle time" else 1 << 60
    w = World(model(**shape), settings(tmp_path, park_idle_ns=idle_ns), cost=replace(COST, copy_ns_per_byte=150.0))
    w.ask("first", text(400))
    if mover == "idle time":
        w.executor.idle()
    else:
        w.submit("next", text(300, 1), max_tokens=8)
        w.tick()
    kept = [node for tree in w.cache.trees.values() for node in tree.nodes() if node.n_kept]
    assert kept and all(node.seg is None for node in kept), "it is being saved"
    w.executor.cache_admin({"action": "clear"})
    until(w, lambda: not len(w.executor.table))
    check_idle(w)
    w.restart()
    w.ask("again", text(400))
    assert w.cached("again") == 0


def test_running_requests_survive_a_clear() -> None:
    w = World(model(), CacheSettings(is_on=True, ram_bytes=10**7))
    w.submit("a", text(300), max_tokens=50)
    until(w, lambda: len(w.texts.get("a", "")) > 5)
    cache_admin(w.cache, {"action": "clear"})
    w.check()
    w.run()
    assert w.texts["a"].encode() == bytes(answer(text(300), 50))
    check_idle(w)


def test_unknown_keys_are_coded_errors() -> None:
    from uma_core.errors import ErrorCode, UmaError

    w = World(model(), CacheSettings(is_on=True, ram_bytes=10**7))
    for action in ("pin", "unpin", "clear"):
        with pytest.raises(UmaError) as caught:
            cache_admin(w.cache, {"action": action, "key": "ffff"})
        assert caught.value.error is ErrorCode.NOT_FOUND
    with pytest.raises(UmaError) as caught:
        cache_admin(w.cache, {"action": "pin", "key": None})
    assert caught.value.error is ErrorCode.BAD_REQUEST


def test_stats_add_up() -> None:
    w = World(model(n_seq_max=1, n_ctx=2048), CacheSettings(is_on=True, ram_bytes=10**7))
    for i in range(4):
        w.ask(f"r{i}", text(300, i % 2), uid=7)
    stats = cache_admin(w.cache, {"action": "stats"})["stats"]
    assert stats["misses"] == 2 and sum(stats["hits"].values()) == 2 and stats["hit_ratio"] == 0.5
    assert sum(stats["tokens_saved"].values()) == 2 * 299
    assert stats["tenants"] == {
        "7": {"resident_bytes": 307 * CELL, "ram_bytes": stats["ram"]["bytes"], "disk_bytes": 0}
    }
    assert stats["resident"]["bytes"] == 307 * CELL
