"""Snapshots on disk: what survives a restart, and that a bad directory does not affect service."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import uma_core.metrics.catalog as m
from tests.cache.asking import computed, model, settings, text, until
from tests.cache.trouble import failing, make_read_only
from tests.cache.world import CELL, Crowd, World, answer, check_idle
from uma_core.cache import disk as disk_module
from uma_core.cache.admin import cache_admin
from uma_core.cache.settings import CacheSettings
from uma_core.cache.store import FULL_NS
from uma_core.types import Priority

N_TURNS = 25 if os.environ.get("UMA_FUZZ") == "full" else 12  # between two restarts


FILE = 3300  # bytes, for 300 tokens and an answer of 8


def world(folder: Path, **fields: object) -> World:
    return World(model(), settings(folder, **fields))


def size_of(folder: Path) -> int:
    """Return the bytes of the files there. The cache's own thread may be removing some of them."""
    n_bytes = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            n_bytes += path.stat().st_size
    return n_bytes


def names(folder: Path) -> list[str]:
    """Return the names of the files; None before the first write, which makes the folder."""
    kept = folder / "kv"
    return sorted(p.name for p in kept.iterdir()) if kept.exists() else []


def shrinks_to(folder: Path, n_bytes: int) -> bool:
    """Wait until no more than this many bytes are left: files are removed in the background."""
    for _ in range(2000):
        if size_of(folder) <= n_bytes:
            return True
        time.sleep(0.005)
    return False


def eventually_empty(folder: Path) -> None:
    """Wait until the folder is empty: the cache's thread may be in the middle of a write that is about to fail."""
    for _ in range(500):
        if not names(folder):
            return
        time.sleep(0.02)
    assert names(folder) == []


def written(w: World) -> None:
    """Wait until all waiting writes are done. The cache's thread has the lowest priority, so it must be given time."""
    disk = w.cache.store.disk
    assert disk is not None
    for _ in range(2000):
        if not disk.n_pending:
            return
        time.sleep(0.005)
        w.tick()
        disk.poll()
    raise AssertionError("it was not written")


@pytest.mark.fuzz
@pytest.mark.parametrize("disk_bytes", [10**7, 20_000])
@pytest.mark.parametrize("ram_tokens", [0, 600, 5000])
def test_conversations_through_restarts(tmp_path: Path, disk_bytes: int, ram_tokens: int) -> None:
    w = world(tmp_path, disk_bytes=disk_bytes, ram_bytes=ram_tokens * CELL)
    crowd = Crowd(w, seed=disk_bytes + ram_tokens)
    for i in range(4):
        crowd.live(N_TURNS * (i + 1))
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


def eventually(w: World, condition: Callable[[], bool]) -> None:
    """Wait in real time until the disk's thread has come so far, while the world's clock stands still."""
    for _ in range(4000):
        w.tick()
        if condition():
            w.check()
            return
        time.sleep(0.005)
    raise AssertionError("it never came")


BEGINNINGS = pytest.mark.parametrize("n_common", [1, 12, 200], ids=["BOS", "a chat header", "a system prompt"])


@BEGINNINGS
@pytest.mark.parametrize("n_chats", [2, 6], ids=["one sequence each", "more than sequences"])
def test_conversations_that_begin_alike_go_on_after_restarts(tmp_path: Path, n_common: int, n_chats: int) -> None:
    w = world(tmp_path)
    chats = [text(n_common) + text(300, 1 + i) for i in range(n_chats)]
    for i, chat in enumerate(chats):
        w.ask(f"first{i}", chat)
    for life in range(3):
        w.restart()
        w.check()
        kept = names(tmp_path)
        for i, chat in enumerate(chats):
            w.ask(f"life {life} chat {i}", chat, n=5)
            assert w.cached(f"life {life} chat {i}") == len(chat) - 1
        assert set(kept) <= set(names(tmp_path))
    check_idle(w)


@BEGINNINGS
def test_conversations_that_begin_alike_survive_a_restart_without_a_clean_end(tmp_path: Path, n_common: int) -> None:
    w = world(tmp_path)
    for i in range(6):  # over three sequences: half of them were saved when they lost theirs
        w.ask(f"r{i}", text(n_common) + text(300, 1 + i))
    written(w)
    w.open()
    w.read_directory()
    hits = []
    for i in range(6):
        w.ask(f"again{i}", text(n_common) + text(300, 1 + i))
        hits.append(w.cached(f"again{i}"))
    assert sorted(hits) == [n_common] * 3 + [n_common + 299] * 3


def test_what_others_continue_is_written_though_it_is_short(tmp_path: Path) -> None:
    """The sequence that held a common prefix last has nothing else that would be worth a file."""
    w = World(model(n_seq_max=2, n_ctx=2 * 2048), settings(tmp_path))
    begin = text(5)
    w.ask("short", [*begin, 70, 71], n=1)
    w.ask("a", begin + text(300, 1))
    w.ask("b", begin + text(300, 2))
    w.restart()
    for name, seed in (("a2", 1), ("b2", 2)):
        w.ask(name, begin + text(300, seed))
        assert w.cached(name) == 304


def test_a_file_whose_beginning_is_lost_is_kept_and_used_once_that_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    w = world(tmp_path)
    chats = [text(200) + text(300, 1 + i) for i in range(2)]
    for i, chat in enumerate(chats):
        w.ask(f"r{i}", chat)
    w.restart()
    shared = min(((tmp_path / "kv" / name).stat().st_size, name) for name in names(tmp_path))[1]
    (tmp_path / "kv" / shared).unlink()
    w.open()
    w.read_directory()
    assert len(names(tmp_path)) == 2
    assert any("2 of them unusable" in r.getMessage() for r in caplog.records)
    w.ask("again0", chats[0])
    w.ask("again1", chats[1])
    assert w.cached("again0") >= 0 and w.cached("again1") == 499
    w.restart()
    for i, chat in enumerate(chats):
        w.ask(f"last{i}", chat)
        assert w.cached(f"last{i}") == 499


def removed(w: World) -> dict[str, int]:
    series = {
        cause: int(w.registry.counter(m.CACHE_FILES_REMOVED, cause=cause).value)
        for cause in m.CACHE_FILES_REMOVED.labels["cause"]
    }
    return {cause: n for cause, n in series.items() if n}


def test_no_file_goes_without_a_line_and_a_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    w = world(tmp_path)
    for i in range(4):
        w.ask(f"r{i}", text(300, i))
    w.restart()
    gone = names(tmp_path)
    (tmp_path / "kv" / gone[0]).write_bytes(b"nonsense")
    (tmp_path / "kv" / "x.1-1.umakv.tmp").write_bytes(b"half")
    os.utime(tmp_path / "kv" / "x.1-1.umakv.tmp", (0, 0))
    w.restart()
    assert removed(w) == {"damaged": 1, "unfinished": 1}
    w.executor.set_cache(settings(tmp_path, disk_bytes=7000))
    eventually(w, lambda: removed(w).get("room") == 1)
    cache_admin(w.cache, {"action": "clear"})
    eventually(w, lambda: removed(w) == {"damaged": 1, "unfinished": 1, "room": 1, "cleared": 2})
    assert names(tmp_path) == []
    for name in gone:
        assert any(name in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize("ram_bytes", [0, 10**7], ids=["disk alone", "with RAM"])
@pytest.mark.parametrize("n_turns", [0, 1, 2], ids=["then ends", "then goes on", "then goes on for long"])
def test_files_that_another_program_removed_are_written_again(tmp_path: Path, ram_bytes: int, n_turns: int) -> None:
    """Whatever the daemon still holds or reads again meanwhile is on disk after a clean end."""
    w = world(tmp_path, ram_bytes=ram_bytes, park_idle_ns=10**9)
    chats = [text(3) + text(260, 1 + i) for i in range(6)]
    for i, chat in enumerate(chats):
        w.ask(f"first{i}", chat)
        written(w)
    for path in (tmp_path / "kv").iterdir():
        path.unlink()
    if not n_turns:
        (tmp_path / "kv").rmdir()
    for turn in range(n_turns):
        for i, chat in enumerate(chats):
            w.ask(f"turn {turn} chat {i}", chat + text(20 * (1 + turn), 50 + i))
            written(w)
    w.restart()
    w.check()
    cached = []
    for i, chat in enumerate(chats):
        w.ask(f"again{i}", chat + text(5, 90))
        cached.append(w.cached(f"again{i}"))
    n_gone = 0 if ram_bytes or n_turns else 6 - len(w.cache.residents)  # only files had them
    assert sorted(n >= 263 for n in cached) == [False] * n_gone + [True] * (6 - n_gone)
    check_idle(w)


def test_a_restart_without_a_clean_end_keeps_what_was_written(tmp_path: Path) -> None:
    w = world(tmp_path)
    for i in range(6):  # over three sequences: half of them were saved when they lost theirs
        w.ask(f"r{i}", text(300, i))
    written(w)
    w.open()
    w.read_directory()
    hits = []
    for i in range(6):
        w.ask(f"again{i}", text(300, i))
        hits.append(w.cached(f"again{i}"))
    assert sorted(hits) == [0, 0, 0, 299, 299, 299]


def test_a_file_that_is_written_again_before_it_is_known_is_kept(tmp_path: Path) -> None:
    w = world(tmp_path, park_idle_ns=0)
    w.ask("a", text(300))
    w.restart()
    files = names(tmp_path)
    w.open()
    disk = w.cache.store.disk
    assert disk is not None and files
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "poll", lambda: None)  # as in a turn that lasts longer than the search and a write
        w.ask("b", text(300))
        assert w.cached("b") == 0
        while w.executor.idle() == 0.0:
            w.clock.advance(10**9)
        for _ in range(2000):
            if len(disk._results) >= 2:
                break
            time.sleep(0.005)
    disk.poll()
    assert disk.close(10.0) and names(tmp_path) == files
    assert list(w.cache.store.files) == files
    w.cache.store.disk = None
    w.open()
    w.read_directory()
    w.ask("c", text(300))
    assert w.cached("c") == 299


def test_files_that_are_cleared_before_they_are_known_go(tmp_path: Path) -> None:
    """A clear may come while the directory of a newly loaded model is still being searched."""
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
    assert names(tmp_path)  # files that came later are kept


def test_what_is_written_again_after_a_clear_is_kept(tmp_path: Path) -> None:
    """The clear came while the first file was being written; the second has its name."""
    w = world(tmp_path, park_idle_ns=0)
    w.ask("first", text(10))
    disk = w.cache.store.disk
    assert disk is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "poll", lambda: None)  # as in a turn that lasts longer than both writes
        for name in ("a", "b"):
            cache_admin(w.cache, {"action": "clear"})
            w.ask(name, text(300))
            while w.executor.idle() == 0.0:
                w.clock.advance(10**9)
        for _ in range(2000):
            if len(disk._results) >= 3:  # the list of files, and both writes
                break
            time.sleep(0.005)
    disk.poll()
    assert disk.close(10.0)
    assert names(tmp_path) == list(w.cache.store.files) != []
    w.cache.store.disk = None


@pytest.mark.parametrize("ram_bytes", [0, 100 * CELL], ids=["no RAM tier", "a RAM tier smaller than a snapshot"])
def test_what_ram_has_no_room_for_goes_to_disk(tmp_path: Path, ram_bytes: int) -> None:
    w = world(tmp_path, ram_bytes=ram_bytes)
    chats = [text(50) + text(300, 1 + i) for i in range(6)]
    for i, chat in enumerate(chats):
        w.ask(f"r{i}", chat)
    eventually(
        w, lambda: len(names(tmp_path)) >= 4
    )  # written in the background: the three chats that lost their sequences, and their common prefix
    w.ask("back", chats[0])
    assert w.cached("back") == 349
    w.restart()
    for i, chat in enumerate(chats):
        w.ask(f"again{i}", chat)
        assert w.cached(f"again{i}") == 349
    assert w.cache.store.ram.n_bytes <= ram_bytes
    check_idle(w)


def test_idle_chats_leave_their_sequences_for_disk_alone(tmp_path: Path) -> None:
    w = world(tmp_path, ram_bytes=0, park_idle_ns=1000)
    w.ask("a", text(300))
    eventually(w, lambda: (tmp_path / "kv").exists() and bool(names(tmp_path)) and not w.engine.kv_len(0))
    w.ask("b", text(300))
    assert w.cached("b") == 299
    check_idle(w)


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


def test_swapped_files_of_two_tenants_give_neither_the_others_cells(tmp_path: Path) -> None:
    """Their prompts differ, so the other tenant's cells would change the text, which `ask` checks."""
    w = world(tmp_path)
    w.ask("a", text(300, 1), uid=1)
    w.restart()
    (first,) = (tmp_path / "kv").iterdir()
    w.ask("b", text(300, 2), uid=2)
    w.restart()
    (second,) = (path for path in (tmp_path / "kv").iterdir() if path != first)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    for name, uid in (("a2", 1), ("b2", 2)):
        w.ask(name, text(300, uid), uid=uid)
        assert w.cached(name) == 0
    eventually(w, lambda: removed(w) == {"damaged": 2})
    check_idle(w)


def test_requests_that_opt_out_are_not_written(tmp_path: Path) -> None:
    w = World(model(n_seq_max=1, n_ctx=2048), settings(tmp_path))
    w.submit("work", text(500), max_tokens=60, priority=Priority.BACKGROUND, cache_prompt=False)
    until(w, lambda: len(w.texts.get("work", "")) >= 10)
    w.submit("chat", text(40, 1), max_tokens=10, priority=Priority.INTERACTIVE, cache_prompt=False)
    w.run()  # "work" was parked, only in RAM
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
        path.write_bytes(
            {"cut": data[:-9], "flip": data[:-9] + b"\xff" + data[-8:], "foreign": b"x" * len(data), "empty": b""}[how]
        )
    w.ask("b", text(700), n=5)
    assert w.cached("b") < 699
    assert any("E_IO_002" in r.getMessage() for r in caplog.records)
    w.ask("c", text(700), n=5)
    assert w.cached("c") == 699
    check_idle(w)


def test_a_restore_that_failed_is_no_hit_of_its_tier(tmp_path: Path) -> None:
    w = World(model(), settings(tmp_path, ram_bytes=0))
    w.ask("a", text(700), n=5)
    w.restart()
    hits = {tier: w.registry.counter(m.CACHE_HITS, tier=tier) for tier in ("resident", "disk")}
    w.ask("short", text(100), n=5)
    before = {tier: hits[tier].value for tier in hits}
    for path in (tmp_path / "kv").iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    w.ask("b", text(700), n=5)
    assert 0 < w.cached("b") < 699  # the part that a sequence held
    assert {tier: hits[tier].value - before[tier] for tier in hits} == {"resident": 1, "disk": 0}


def test_a_full_disk_does_not_stop_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_module.os, "fsync", failing(errno.ENOSPC))
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
    assert len(full_disk) == 2  # one warning per life of the daemon


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_files_stay_while_no_others_can_be_written(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each snapshot made room for a file that was not tried: a directory at its budget lost all it had."""
    w = world(tmp_path, disk_bytes=4 * FILE)
    ask_for_files(w, range(8))
    assert len(names(tmp_path)) == 4
    monkeypatch.setattr(disk_module.os, "fsync", failing(number))
    ask_for_files(w, range(8, 16))
    w.restart()
    assert len(names(tmp_path)) == 3, "one made room for the file that was tried"


def test_on_a_full_file_system_new_files_replace_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, those that were there when it became full stayed for ever, and no chat after them was written."""
    real_fsync = os.fsync

    def fsync(fd: int) -> None:
        if size_of(tmp_path / "kv") > 4 * FILE:
            failing(errno.ENOSPC)()
        real_fsync(fd)

    w = world(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(disk_module.os, "fsync", fsync)
        ask_for_files(w, range(8))
        before = names(tmp_path)
        w.clock.advance(disk_module.BACK_OFF_NS)
        ask_for_files(w, range(8, 16))
        assert len(before) == len(names(tmp_path)) == 4 and not set(before) & set(names(tmp_path))
    w.clock.advance(FULL_NS)
    ask_for_files(w, range(16, 24))
    assert len(names(tmp_path)) == 12


def ask_for_files(w: World, seeds: range) -> None:
    """Ask once for each seed, and wait until what is displaced is written."""
    for seed in seeds:
        w.ask(f"{seed}", text(300, seed))
        written(w)


def test_a_directory_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    w = World(model(), CacheSettings(is_on=True, ram_bytes=10**7, disk_dir=str(tmp_path / "file" / "kv")))
    w.ask("a", text(300))
    w.ask("b", text(300))
    assert w.cached("b") == 299
    w.restart()
    assert any("E_IO_002" in r.getMessage() for r in caplog.records)


def test_a_directory_that_the_engine_cannot_use_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    w = World(model(can_rollback=False), settings(tmp_path))
    w.executor.set_cache(settings(tmp_path, ram_bytes=5 * 10**6))
    w.tick()
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "cache.disk_dir is not used" in said and "cannot copy KV" in said
    assert w.cache.store.disk is None


def test_a_read_only_directory_serves_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    w = world(tmp_path)
    w.ask("a", text(300))
    w.restart()
    before = names(tmp_path)
    make_read_only(monkeypatch)
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


def test_a_file_that_is_lost_while_its_directory_is_given_up_costs_time_only(tmp_path: Path) -> None:
    w = world(tmp_path)
    w.ask("a", text(700), n=5)
    w.restart()
    disk, may_go_on = w.cache.store.disk, threading.Event()
    assert disk is not None
    disk._put(disk_module.READ, lambda: may_go_on.wait(10))
    w.submit("b", text(700), max_tokens=5)
    until(w, lambda: any(session.transfer is not None for session in w.executor.table))
    for path in (tmp_path / "kv").iterdir():
        path.unlink()
    w.executor.set_cache(settings(tmp_path, disk_dir=""))
    may_go_on.set()
    w.run()
    assert w.texts["b"].encode() == bytes(answer(text(700), 5))
    check_idle(w)


# the operator's view


def test_a_disk_that_does_not_answer_at_the_end_leaves_time_and_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    w = world(tmp_path)
    disk, at_disk, may_go_on = w.cache.store.disk, threading.Event(), threading.Event()
    assert disk is not None

    class Unanswered(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            w.clock.advance(int(timeout * 1e9))
            return False

    disk.list_names = lambda then: Unanswered()  # type: ignore[method-assign,assignment]
    disk._put(disk_module.READ, lambda: (at_disk.set(), may_go_on.wait(10)))
    assert at_disk.wait(10)
    w.ask("a", text(300))
    w.executor.close(0.3)
    may_go_on.set()
    assert any("not written in time" in r.getMessage() for r in caplog.records)
    for _ in range(2000):
        if names(tmp_path):
            break
        time.sleep(0.005)
    assert names(tmp_path)  # it was still handed to the disk's thread


@pytest.mark.parametrize("is_given_up", [False, True], ids=["another directory", "none for a while"])
def test_what_the_old_directory_was_getting_goes_to_the_new_one(tmp_path: Path, is_given_up: bool) -> None:
    w = world(tmp_path)
    disk, at_disk, may_go_on = w.cache.store.disk, threading.Event(), threading.Event()
    assert disk is not None
    disk.list_names(lambda found: None).wait(10)
    disk._put(disk_module.READ, lambda: (at_disk.set(), may_go_on.wait(10)))  # a slow disk
    assert at_disk.wait(10)
    for i in range(4):
        w.ask(f"a{i}", text(300, i))
    assert disk.n_pending
    for folder in ([""] if is_given_up else []) + [str(tmp_path / "other")]:
        w.settings = settings(tmp_path, disk_dir=folder)
        w.executor.set_cache(w.settings)
        w.tick()
    may_go_on.set()
    w.restart()
    w.check()
    for i in range(4):
        w.ask(f"b{i}", text(300, i))
        assert w.cached(f"b{i}") == 299
    check_idle(w)
