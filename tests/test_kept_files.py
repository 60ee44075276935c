"""A kept file is whole or missing, and is read only if it is ours. A file whose writer was killed can be told from one
that is still being written: at once, and without the clock.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from uma_core import kept_files
from uma_core.kept_files import hold, is_left_over, open_ours, replacing


def judged(path: Path) -> bool:
    return is_left_over(str(path), path.stat())


@pytest.mark.parametrize("t", [0, 1 << 40])
def test_what_is_held_is_being_written_whatever_the_clock_says(tmp_path: Path, t: int) -> None:
    path = tmp_path / "file"
    with path.open("wb", buffering=0) as file:
        hold(file.fileno())
        file.write(b"half")
        os.utime(path, (t, t))
        assert not judged(path)
    assert judged(path)


def test_an_empty_file_may_not_be_held_yet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert not judged(path)
    os.utime(path, (0, 0))
    assert judged(path)


def test_without_locks_time_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(kept_files.fcntl, "flock", refuse)
    path = tmp_path / "file"
    with path.open("wb", buffering=0) as file:
        hold(file.fileno())
        file.write(b"half")
    assert not judged(path)
    os.utime(path, (0, 0))
    assert judged(path)


def test_what_was_written_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file.kept"
    path.write_bytes(b"old")
    with replacing(str(path)) as fd:
        (written,) = tmp_path.glob("*.kept.tmp")
        os.write(fd, b"new")
        assert not judged(written)
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.kept"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), replacing(str(path)) as fd:
        os.write(fd, b"half")
        raise KeyError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o620, 0o602])
def test_only_what_nobody_else_can_have_written_is_opened(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"ours")
    path.chmod(mode)
    fd = open_ours(str(path))
    assert (fd is None) is bool(mode & 0o022)
    if fd is not None:
        assert os.read(fd, 9) == b"ours"
        os.close(fd)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert open_ours(str(tmp_path / "fifo")) is None
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    with pytest.raises(OSError):
        open_ours(str(tmp_path / "link"))
