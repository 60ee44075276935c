from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from native import cache
from native.pin import BuildError
from uma_core import measured

FACTS: dict[str, object] = {"flags": {"A": "1"}, "compiler": "cc 1"}
Note = Callable[[str], None]


class Builder:
    """Stands in for a compile: writes two files and counts."""

    def __init__(self) -> None:
        self.n_runs = 0

    def __call__(self, folder: Path) -> None:
        self.n_runs += 1
        (folder / "lib").mkdir()
        (folder / "lib" / "liba.so").write_bytes(b"library")
        (folder / "notes.txt").write_text("text")


@pytest.fixture
def builder() -> Builder:
    return Builder()


def get(root: Path, builder: Callable[[Path], None], note: Note, facts: dict[str, object] = FACTS) -> Path:
    return cache.get_or_build(root, "kind", facts, builder, note)


def test_a_second_request_is_served_without_building(
    tmp_path: Path, builder: Builder, note: Note, notes: list[str]
) -> None:
    first, second = get(tmp_path, builder, note), get(tmp_path, builder, note)
    assert first == second
    assert builder.n_runs == 1
    assert notes == []
    assert (first / "lib" / "liba.so").read_bytes() == b"library"


@pytest.mark.parametrize("change", [{"flags": {"A": "2"}}, {"compiler": "cc 2"}, {"more": 1}])
def test_any_changed_fact_builds_anew(tmp_path: Path, builder: Builder, note: Note, change: dict[str, object]) -> None:
    get(tmp_path, builder, note)
    get(tmp_path, builder, note, {**FACTS, **change})
    assert builder.n_runs == 2


def test_the_order_of_facts_does_not_change_the_key() -> None:
    assert cache.make_key({"a": 1, "b": 2}) == cache.make_key({"b": 2, "a": 1})


def damage(entry: Path, how: str) -> None:
    library, manifest = entry / "lib" / "liba.so", entry / cache.MANIFEST
    if how == "changed byte":
        library.write_bytes(b"librarY")
    elif how == "truncated":
        library.write_bytes(b"")
    elif how == "missing file":
        library.unlink()
    elif how == "extra file":
        (entry / "extra").touch()
    elif how == "no manifest":
        manifest.unlink()
    elif how == "half a manifest":
        manifest.write_text(manifest.read_text()[:40])
    elif how == "manifest of another shape":
        manifest.write_text(json.dumps([1, 2]))
    elif how == "manifest without files":
        manifest.write_text(json.dumps({"files": None}))


@pytest.mark.parametrize(
    "how",
    [
        "changed byte",
        "truncated",
        "missing file",
        "extra file",
        "no manifest",
        "half a manifest",
        "manifest of another shape",
        "manifest without files",
    ],
)
def test_a_corrupt_entry_is_noticed_and_built_again(
    tmp_path: Path, builder: Builder, note: Note, notes: list[str], how: str
) -> None:
    damage(get(tmp_path, builder, note), how)
    entry = get(tmp_path, builder, note)
    assert builder.n_runs == 2
    assert cache.verify_entry(entry) == ""
    assert (entry / "lib" / "liba.so").read_bytes() == b"library"
    assert "unusable" in notes[0]


def test_a_build_that_fails_publishes_nothing(tmp_path: Path, builder: Builder, note: Note) -> None:
    def fails(folder: Path) -> None:
        builder(folder)
        raise BuildError("compiler said no")

    with pytest.raises(BuildError, match="compiler said no"):
        get(tmp_path, fails, note)
    assert [p for p in (tmp_path / "kind").iterdir() if p.is_dir()] == []
    get(tmp_path, builder, note)
    assert builder.n_runs == 2


def test_what_a_killed_build_left_is_removed_and_not_used(tmp_path: Path, builder: Builder, note: Note) -> None:
    folder = tmp_path / "kind"
    half = folder / f".{cache.make_key(FACTS)}-dead"
    (half / "lib").mkdir(parents=True)
    (half / "lib" / "liba.so").write_bytes(b"libr")
    entry = get(tmp_path, builder, note)
    assert builder.n_runs == 1
    assert not half.exists()
    assert (entry / "lib" / "liba.so").read_bytes() == b"library"


def test_what_a_killed_build_worked_with_is_removed(tmp_path: Path, builder: Builder, note: Note) -> None:
    class Killed(BaseException):
        pass

    def killed(scratch: Path) -> None:
        work = cache.work_beside(scratch)
        (work.__enter__() / "object").write_text("large")
        left.append(work)  # kept alive: nothing cleans up after a signal that kills
        raise Killed

    left: list[object] = []
    with pytest.raises(Killed):
        cache.get_or_build(tmp_path, "kind", FACTS, killed, note)
    assert list((tmp_path / "kind").rglob("object"))
    entry = get(tmp_path, builder, note)
    assert not list((tmp_path / "kind").rglob("object"))
    assert cache.verify_entry(entry) == ""


def test_two_builds_of_one_key_do_not_overlap(tmp_path: Path, builder: Builder) -> None:
    is_waiting, started = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        started.set()
        assert is_waiting.wait(30)  # the other thread waits at the lock
        builder(folder)

    found: list[Path] = []
    first = threading.Thread(target=lambda: found.append(get(tmp_path, slow, lambda text: None)))
    first.start()
    assert started.wait(30)
    second = threading.Thread(target=lambda: found.append(get(tmp_path, builder, lambda text: is_waiting.set())))
    second.start()
    first.join(30)
    second.join(30)
    assert builder.n_runs == 1
    assert len(set(found)) == 1 and len(found) == 2


def test_an_unwritable_cache_folder_is_named(tmp_path: Path, builder: Builder, note: Note) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="UMA_BUILD_CACHE"):
        get(tmp_path / "file", builder, note)


def test_prune_keeps_the_entries_used_last(tmp_path: Path, builder: Builder, note: Note) -> None:
    entries = [get(tmp_path, builder, note, {"n": n}) for n in range(4)]
    for age, entry in enumerate(entries):
        os.utime(entry, (1000 + age, 1000 + age))
    get(tmp_path, builder, note, {"n": 0})  # used again, so it is now the newest
    cache.prune(tmp_path, "kind", 2)
    assert [entry.exists() for entry in entries] == [True, False, False, True]


def test_prune_leaves_an_entry_that_is_held(tmp_path: Path, builder: Builder, note: Note) -> None:
    entry = get(tmp_path, builder, note)
    with (tmp_path / "kind" / f"{entry.name}.lock").open("a") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        cache.prune(tmp_path, "kind", 0)
    assert entry.exists()


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_BUILD_CACHE", str(tmp_path / "here"))
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path / "snapshots"))
    assert cache.cache_root() == tmp_path / "here"


def test_a_relative_xdg_folder_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("UMA_BUILD_CACHE", "UMA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, expected in ((str(tmp_path / "xdg"), tmp_path / "xdg"), ("xdg", tmp_path / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert cache.cache_root() == measured.home() == expected / "uma-serve"


def test_the_old_name_of_the_cache_folder_works_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("UMA_BUILD_CACHE", raising=False)
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path / "old"))
    cache._deprecate.cache_clear()
    assert cache.cache_root() == cache.cache_root() == tmp_path / "old"
    assert capsys.readouterr().err.count("set UMA_BUILD_CACHE") == 1
