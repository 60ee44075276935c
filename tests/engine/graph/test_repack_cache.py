"""Repacked weights are kept between starts: the next start reads them. Whatever is wrong with the file costs a repack
and nothing else.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from native.build import ROOT
from tests.engine.graph.conftest import SMALL
from tests.engine.graph.loading import has_repacked, logits_of, opened
from tests.engine.graph.models import MODELS, TYPED
from uma_core import kept_files
from uma_core.engine.graph import repack, repack_cache
from uma_core.engine.graph.engine import GraphEngine
from uma_core.errors import UmaError

pytestmark = pytest.mark.skipif(not has_repacked(), reason="this processor's kernels repack nothing")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UMA_BUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


@pytest.fixture
def path(written) -> str:
    return written(MODELS["llama"])


def start(path: str, **options: object) -> tuple[str, np.ndarray]:
    """Return where a start gets its weights from, and what it computes."""
    with opened(path, "auto", **{"repack_cache": True, **options}) as engine:
        return engine.info.weights_from, logits_of(engine)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "mixtral", "mixtral-mxfp4", "llama-q4_k", "llama-q6_k", "llama-q5_0"]
)
def test_the_second_start_reads_what_the_first_kept(name: str, written, folder: Path) -> None:
    path = written((MODELS | TYPED)[name])
    plain, expected = start(path, repack_cache=False)
    assert plain == "repacked"
    assert not names(folder)
    first, second = start(path), start(path)
    assert (first[0], second[0]) == ("repacked", "repack cache")
    assert np.array_equal(first[1], expected)
    assert np.array_equal(second[1], expected)
    assert len(names(folder)) == 1


@pytest.mark.parametrize("name", ["llama", "qwen2", "mixtral", "mixtral-q4_k"])
def test_pieces_of_any_size_repack_the_same(name: str, written, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written((MODELS | TYPED)[name])
    with opened(path, "auto") as engine:
        expected = logits_of(engine)
    monkeypatch.setattr(repack, "PIECE_BYTES", 1)  # 64 rows at a time
    with opened(path, "auto") as engine:
        assert np.array_equal(logits_of(engine), expected)


def flip(offset: int) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[offset] ^= 1
        file.write_bytes(data)

    return damage


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def empty(file: Path) -> None:
    os.truncate(file, 0)


DAMAGES = {"magic": flip(0), "header": flip(60), "weights": flip(-100), "cut": cut, "empty": empty}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_made_anew(damage: Callable[[Path], None], path: str, folder: Path, caplog) -> None:
    _, expected = start(path)
    damage(folder / names(folder)[0])
    with caplog.at_level(logging.WARNING):
        source, found = start(path)
    assert source == "repacked"
    assert np.array_equal(found, expected)
    assert "E_IO_002" in caplog.text
    assert start(path)[0] == "repack cache"


def test_a_file_of_another_model_in_its_place_is_made_anew(path: str, written, folder: Path) -> None:
    _, expected = start(path)
    (own,) = names(folder)
    start(written(MODELS["qwen2"]))
    (other,) = set(names(folder)) - {own}
    os.replace(folder / other, folder / own)
    source, found = start(path)
    assert source == "repacked"
    assert np.array_equal(found, expected)


def test_a_model_that_was_written_again_is_repacked(path: str, folder: Path) -> None:
    start(path)
    os.utime(path, ns=(1, os.stat(path).st_mtime_ns + 1))
    assert start(path)[0] == "repacked"


def test_what_others_could_have_written_is_left_alone(path: str, folder: Path, caplog) -> None:
    start(path)
    file = folder / names(folder)[0]
    file.chmod(0o666)
    before = file.stat()
    with caplog.at_level(logging.WARNING):
        assert start(path)[0] == "repacked"
    assert "left as it is" in caplog.text
    after = file.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_link_in_its_place_is_left_alone(path: str, folder: Path, tmp_path: Path) -> None:
    start(path)
    file = folder / names(folder)[0]
    elsewhere = tmp_path / "elsewhere"
    os.replace(file, elsewhere)
    file.symlink_to(elsewhere)
    assert start(path)[0] == "repacked"
    assert file.is_symlink()


def test_a_full_disk_costs_a_warning(path: str, folder: Path, caplog) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with caplog.at_level(logging.WARNING):
            source, found = start(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert source == "repacked"
    assert "not kept" in caplog.text
    assert names(folder) == []
    kept, expected = start(path)
    assert kept == "repacked"
    assert np.array_equal(found, expected)
    assert start(path)[0] == "repack cache"


def test_a_disk_that_fails_within_the_write_costs_a_warning(path: str, folder: Path, monkeypatch, caplog) -> None:
    def fail(fd: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fail)
    with caplog.at_level(logging.WARNING):
        assert start(path)[0] == "repacked"
    assert "No space left" in caplog.text
    assert names(folder) == []


def test_a_folder_that_cannot_be_made_costs_a_warning(path: str, folder: Path, caplog) -> None:
    folder.parent.mkdir()
    folder.write_text("")
    with caplog.at_level(logging.WARNING):
        assert start(path)[0] == "repacked"
    assert "not kept" in caplog.text


def test_a_load_that_is_given_up_while_it_keeps_weights_leaves_nothing(path: str, folder: Path) -> None:
    with pytest.raises(UmaError, match="cancelled"):
        GraphEngine(path, replace(SMALL, repack_cache=True), lambda share: share < 0.99)
    assert names(folder) == []


def test_progress_grows_to_the_end(path: str, folder: Path) -> None:
    for _ in range(2):  # the first start repacks and keeps, the second one reads
        shares: list[float] = []
        GraphEngine(path, replace(SMALL, repack_cache=True), lambda share, to=shares: to.append(share) or True).close()
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1.0)


def test_starts_at_the_same_time_do_not_disturb_each_other(path: str, folder: Path) -> None:
    _, expected = start(path, repack_cache=False)
    found: list[tuple[str, np.ndarray]] = []
    threads = [threading.Thread(target=lambda: found.append(start(path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(np.array_equal(logits, expected) for _, logits in found)
    assert len(names(folder)) == 1
    assert start(path)[0] == "repack cache"


def test_the_folder_keeps_to_its_bound_and_the_least_recently_used_goes(path: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    for age, name in enumerate(("new", "old")):
        file = folder / f"{name}{repack_cache.SUFFIX}"
        file.write_bytes(bytes(600 << 10))
        os.utime(file, (time.time() - 1000 * (age + 1),) * 2)
    start(path, repack_cache_mb=1)
    assert len(names(folder)) == 2
    assert f"old{repack_cache.SUFFIX}" not in names(folder)


def test_weights_beyond_the_bound_are_not_kept(path: str, folder: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        assert start(path, repack_cache_mb=0)[0] == "repacked"
    assert "engine.repack_cache_mb" in caplog.text
    assert names(folder) == []


def test_what_no_start_can_use_any_more_is_removed(path: str, folder: Path) -> None:
    start(path)
    (own,) = names(folder)
    layout = own.replace("-v1-", "-v0-")
    old, left, held = (f"{letter}{repack_cache.TEMPORARY}" for letter in "xyz")
    for name in (layout, old, left, held):
        (folder / name).write_bytes(b"half")
    os.utime(folder / old, (1, 1))
    with (folder / held).open("rb+") as file:  # another process is writing that file
        kept_files.hold(file.fileno())
        start(path)
        assert names(folder) == sorted([own, held])


def test_a_daemon_that_is_killed_again_and_again_while_it_writes_fills_no_disk(path: str, folder: Path) -> None:
    code = (
        "import os, sys; from dataclasses import replace; from tests.engine.graph.conftest import SMALL;"
        "from uma_core.engine.graph import repack_cache; from uma_core.engine.graph.engine import GraphEngine;"
        "repack_cache.os.fsync = lambda fd: os.kill(os.getpid(), 9);"
        "GraphEngine(sys.argv[1], replace(SMALL, repack_cache=True))"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code, path], cwd=ROOT)
        assert done.returncode == -signal.SIGKILL
        assert len(names(folder)) == 1
    start(path)
    assert not [name for name in names(folder) if name.endswith(repack_cache.TEMPORARY)]


def test_without_a_home_folder_nothing_is_kept(path: str, homeless: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert start(path)[0] == start(path)[0] == "repacked"
    assert "set HOME or XDG_CACHE_HOME" in caplog.text
    assert not list(homeless.iterdir())


def test_a_mapped_model_keeps_nothing(path: str, folder: Path) -> None:
    with opened(path, "mmap", repack_cache=True) as engine:
        assert engine.info.weights_from == "mapped"
    assert names(folder) == []
