"""The disk tier: what survives a restart, and what a bad directory does to service (nothing)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from pathlib import Path

import pytest

import uma_core.metrics as m
from tests.cache_engine.asking import computed, model, text, until
from tests.cache_engine.world import CELL, Crowd, World, answer, check_idle
from uma_core.cache import disk as disk_module
from uma_core.cache.admin import cache_admin
from uma_core.cache.settings import CacheSettings
from uma_core.types import Lane


def settings(folder: Path, **fields: object) -> CacheSettings:
    return CacheSettings(**{"is_on": True, "ram_bytes": 10**7, "disk_dir": str(folder / "kv"), "disk_bytes": 10**7, **fields})  # type: ignore[arg-type]


def world(folder: Path, **fields: object) -> World:
    return World(model(), settings(folder, **fields))


def size_of(folder: Path) -> int:
    """Bytes of the files there; the cache's own thread may be removing some."""
    n_bytes = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            n_bytes += path.stat().st_size
    return n_bytes


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "kv").iterdir())


def shrinks_to(folder: Path, n_bytes: int) -> bool:
    """Files are removed behind the work: soon no more than so many bytes are left."""
    for _ in range(2000):
        if size_of(folder) <= n_bytes:
            return True
        time.sleep(0.005)
    return False


def eventually_empty(folder: Path) -> None:
    """The cache's own thread may be in the middle of a write that is about to fail."""
    for _ in range(500):
        if not names(folder):
            return
        time.sleep(0.02)
    assert names(folder) == []


@pytest.mark.parametrize("disk_bytes", [10**7, 20_000])
@pytest.mark.parametrize("ram_tokens", [600, 5000])
def test_conversations_through_restarts(tmp_path: Path, disk_bytes: int, ram_tokens: int) -> None:
    w = world(tmp_path, disk_bytes=disk_bytes, ram_bytes=ram_tokens * CELL)
    crowd = Crowd(w, seed=disk_bytes + ram_tokens)
    for i in range(4):
        crowd.live(25 * (i + 1))
        check_idle(w)
        w.restart()
        w.check()
        assert shrinks_to(tmp_path / "kv", disk_bytes)
    assert crowd.n_cached > 0


def test_a_chat_goes_on_after_a_restart(tmp_path: Path) -> None:
    w = world(tmp_path)
    w.ask("a", text(700), n=20)
    w.restart()
    w.ask("b", text(700) + answer(text(700), 20) + text(30, 1), n=5)
    assert w.cached("b") == 719 and computed(w) == 31
    assert w.registry.counter(m.CACHE_HITS, tier="disk").value == 1
    check_idle(w)


def test_a_restart_without_a_clean_end_keeps_what_was_written(tmp_path: Path) -> None:
    w = world(tmp_path)
    for i in range(6):  # over three sequences: half of them were saved when they lost theirs
        w.ask(f"r{i}", text(300, i))
    until(w, lambda: not w.cache.store.disk.n_pending if w.cache.store.disk else True)
    w.open()
    w.read_directory()
    hits = []
    for i in range(6):
        w.ask(f"again{i}", text(300, i))
        hits.append(w.cached(f"again{i}"))
    assert sorted(hits) == [0, 0, 0, 299, 299, 299]


def test_files_that_are_cleared_before_they_are_known_go(tmp_path: Path) -> None:
    """A clear may come while the directory of a model that was just loaded is still being looked through."""
    w = world(tmp_path)
    w.ask("a", text(700), n=20)
    w.restart()
    assert names(tmp_path)
    w.open()
    cache_admin(w.cache, {"action": "clear"})
    w.read_directory()
    assert not w.cache.store.files
    eventually_empty(tmp_path)
    w.ask("b", text(700), n=5)
    assert w.cached("b") == 0
    w.restart()
    assert names(tmp_path)  # what came after is kept


def test_growing_chats_are_written_turn_by_turn(tmp_path: Path) -> None:
    w = world(tmp_path)
    tokens = text(200)
    for turn in range(5):
        w.ask(f"t{turn}", tokens, n=5)
        tokens = tokens + answer(tokens, 5) + text(60, turn + 1)
        w.restart()
    assert len(names(tmp_path)) == 5
    w.ask("end", tokens, n=5)
    assert w.cached("end") == 200 + 4 * 65 + 4


def test_tenants_are_kept_apart_on_disk(tmp_path: Path) -> None:
    w = world(tmp_path)
    w.ask("a", text(300), uid=1)
    w.restart()
    w.ask("b", text(300), uid=2)
    assert w.cached("b") == 0
    w.ask("c", text(300), uid=1)
    assert w.cached("c") == 299


def test_requests_that_opt_out_are_not_written(tmp_path: Path) -> None:
    w = World(model(n_seq_max=1, n_ctx=2048), settings(tmp_path))
    w.submit("work", text(500), max_tokens=60, lane=Lane.BACKGROUND, cache_prompt=False)
    until(w, lambda: len(w.texts.get("work", "")) >= 10)
    w.submit("chat", text(40, 1), max_tokens=10, lane=Lane.INTERACTIVE, cache_prompt=False)
    w.run()  # "work" was parked, in RAM alone
    assert w.texts["work"].encode() == bytes(answer(text(500), 60))
    w.restart()
    assert names(tmp_path) == []


@pytest.mark.parametrize("how", ["cut", "flip", "foreign", "empty"])
def test_damaged_files_cost_time_only(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    w = world(tmp_path)
    w.ask("a", text(700), n=5)
    w.restart()
    for path in (tmp_path / "kv").iterdir():
        data = path.read_bytes()
        path.write_bytes({"cut": data[:-9], "flip": data[:-9] + b"\xff" + data[-8:], "foreign": b"x" * len(data), "empty": b""}[how])
    w.ask("b", text(700), n=5)
    assert w.cached("b") < 699
    assert any("E_IO_002" in r.getMessage() for r in caplog.records)
    w.ask("c", text(700), n=5)
    assert w.cached("c") == 699
    check_idle(w)


def test_a_full_disk_does_not_stop_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_module.os, "fsync", full)
    w = world(tmp_path)
    crowd = Crowd(w, seed=4)
    crowd.live(30)
    w.restart()
    crowd.live(60)
    check_idle(w)
    eventually_empty(tmp_path)
    stats = cache_admin(w.cache, {"action": "stats"})["stats"]
    assert stats["disk"]["last_error"].endswith(os.strerror(errno.ENOSPC)) and not stats["disk"]["is_writing"]
    full_disk = [r for r in caplog.records if r.levelno == logging.WARNING and "E_IO_002" in r.getMessage()]
    assert len(full_disk) == 2  # one per life of the daemon


def test_a_directory_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    w = World(model(), CacheSettings(is_on=True, ram_bytes=10**7, disk_dir=str(tmp_path / "file" / "kv")))
    w.ask("a", text(300))
    w.ask("b", text(300))
    assert w.cached("b") == 299
    w.restart()
    assert any("E_IO_002" in r.getMessage() for r in caplog.records)


def test_a_read_only_directory_serves_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    w = world(tmp_path)
    w.ask("a", text(300))
    w.restart()
    before = names(tmp_path)
    real_open = os.open

    def read_only(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real_open(path, flags, *rest)

    monkeypatch.setattr(disk_module.os, "open", read_only)
    w.ask("b", text(300))
    assert w.cached("b") == 299
    for i in range(5):
        w.ask(f"c{i}", text(300, i + 1))
    w.restart()
    assert names(tmp_path) == before
    assert any("E_IO_002" in r.getMessage() and os.strerror(errno.EROFS) in r.getMessage() for r in caplog.records)


def test_a_changed_directory_takes_effect_between_ticks(tmp_path: Path) -> None:
    w = world(tmp_path)
    w.ask("a", text(300))
    w.executor.set_cache(CacheSettings(is_on=True, ram_bytes=10**7))
    w.check()
    w.ask("b", text(300))
    assert w.cached("b") == 299 and w.cache.store.disk is None
    w.executor.set_cache(settings(tmp_path))
    w.ask("c", text(300, 1))
    w.restart()
    w.ask("d", text(300, 1))
    assert w.cached("d") == 299


# the operator's view


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
    assert stats["tenants"] == {"7": {"resident_bytes": 307 * CELL, "ram_bytes": stats["ram"]["bytes"], "disk_bytes": 0}}
    assert stats["resident"]["bytes"] == 307 * CELL
